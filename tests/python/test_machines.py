"""`plait topo --from` and `--new`: machines that other tools describe become topologies."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gpu_stand_ins import plait_command

import plait
from plait import machines
from plait.machines import facts

FOLDER = Path(__file__).parent.parent / "machines"

# NUMA node of each GPU; direct NVLinks of a pair; links to NVSwitch; GPUs of each PCIe switch.
EXPECTED: dict[str, tuple[list[int], dict[tuple[int, int], int], int, list[list[int]]]] = {
    "a100-sxm-x8.txt": ([3, 3, 1, 1, 7, 7, 5, 5], {}, 12, [[0, 1], [2, 3], [4, 5], [6, 7]]),
    "h100-sxm-x8.txt": ([0] * 4 + [1] * 4, {}, 18, []),
    "l40s-x4.txt": ([0, 0, 1, 1], {}, 0, []),
    "l40s-x8.txt": ([0] * 4 + [1] * 4, {}, 0, [[0, 1], [2, 3], [4, 5], [6, 7]]),
    "rtx-5090-x2.txt": ([0, 0], {}, 0, []),
    "rtx-4090-x5.txt": ([1, 0, 0, 0, 0], {}, 0, []),
    "v100-nvswitch-x16.txt": (
        [0] * 8 + [1] * 8,
        {},
        6,
        [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]],
    ),
    "p40-x8.txt": ([0] * 4 + [1] * 4, {}, 0, [[0, 1], [2, 3], [4, 5], [6, 7]]),
    "l20-x4.txt": ([0] * 4, {}, 0, [[1, 2]]),
    "gh200-x4.txt": (
        [0, 1, 2, 3],
        {(i, j): 6 for i in range(4) for j in range(i + 1, 4)},
        0,
        [],
    ),
    "a100-pcie-x4.xml": ([0, 1, 2, 3], {(0, 1): 12, (2, 3): 12}, 0, []),
    "h200-sxm-x8.xml": ([0] * 4 + [1] * 4, {}, 18, []),
    "v100-sxm-x4.xml": (
        [0] * 4,
        {(0, 1): 1, (0, 2): 1, (0, 3): 2, (1, 2): 2, (1, 3): 1, (2, 3): 2},
        0,
        [[0, 1], [2, 3]],
    ),
    "p100-power8-x4.xml": ([0, 0, 1, 1], {(0, 1): 2, (2, 3): 2}, 0, []),
    "a40-x4.xml": ([0, 0, 0, 1], {}, 0, [[0, 1]]),
}


def read(name: str) -> facts.Machine:
    return machines.read(str(FOLDER / name))


def topology(machine: facts.Machine) -> plait.Topology:
    return plait.Topology.from_json(json.dumps(machines.as_json(machine, "box")))


def test_every_file_is_expected():
    assert {path.name for path in FOLDER.iterdir()} == {*EXPECTED, "README.md"}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_facts_are_those_of_the_file(name):
    nodes, nvlinks, switched, behind = EXPECTED[name]
    machine = read(name)
    assert [gpu.numa for gpu in machine.gpus] == nodes
    assert machine.nvlinks == nvlinks
    assert machine.switch_links == ({i: switched for i in range(len(nodes))} if switched else {})
    switches = sorted({switch for gpu in machine.gpus for switch in gpu.switches})
    found = [[i for i, gpu in enumerate(machine.gpus) if one in gpu.switches] for one in switches]
    assert found == behind


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_plans_for_the_machine_are_proved(name):
    box = topology(read(name))
    ranks = len(EXPECTED[name][0])
    assert len(box.rank_devices()) == ranks and "measured" in box.source
    request = plait.Request("all_reduce", 1 << 20, "fp32", ranks=min(ranks, 8))
    best = plait.ranked(box, request)[0][0]
    assert plait.verify(best.plan).proved, best.plan


def links(box: plait.Topology, kind: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Links of a kind by their ends, as the topology's JSON states them."""
    return {
        (link["src"], link["dst"]): link
        for link in json.loads(box.to_json())["links"]
        if link["kind"] == kind
    }


def test_pairs_behind_nvswitch_share_ports():
    found = links(topology(read("h200-sxm-x8.xml")), "nvlink")
    assert len(found) == 56
    one = found["gpu0", "gpu5"]
    assert one["resources"] == ["gpu0.nvlink.out", "gpu5.nvlink.in"]
    assert one["width"] == 18 and one["gb_per_s"] == pytest.approx(396)


def test_gpus_behind_a_switch_share_its_upstream_port():
    box = topology(read("v100-sxm-x4.xml"))
    up = links(box, "pcie")["gpu1", "numa0"]
    assert up["resources"] == ["gpu1.host.up", "numa0.dram", "switch0.up"]
    speeds = {one["name"]: one["gb_per_s"] for one in json.loads(box.to_json())["resources"]}
    assert speeds["switch0.up"] == speeds["gpu1.host.up"] == pytest.approx(12.32)


def test_a_cpu_with_nvlinks_is_reached_by_them():
    box = topology(read("p100-power8-x4.xml"))
    assert not links(box, "pcie")
    assert links(box, "nvlink")["gpu2", "numa1"]["gb_per_s"] == pytest.approx(35.2)


def test_nics_become_a_network_if_each_gpu_has_one():
    said = machines.as_json(read("h200-sxm-x8.xml"), "box")
    nics = said["network"]["nics"]
    assert [nic["affinity"] for nic in nics] == [[f"gpu{i}"] for i in range(8)]
    assert said["network"]["gb_per_s"] == pytest.approx(48)
    said["network"]["nodes"] = 2
    assert len(plait.Topology.from_json(json.dumps(said)).rank_devices()) == 16
    assert "network" not in machines.as_json(read("a100-pcie-x4.xml"), "box")  # one NIC, one GPU
    assert "network" not in machines.as_json(read("l40s-x4.txt"), "box")  # speed not stated


def test_models_are_read_or_given():
    assert {gpu.model for gpu in read("rtx-5090-x2.txt").gpus} == {"NVIDIA GeForce RTX 5090"}
    assert {gpu.model for gpu in read("h200-sxm-x8.xml").gpus} == {"NVIDIA H200"}
    machine = read("l40s-x4.txt")
    assert "not stated: PCIe 4.0 x16" in topology(machine).source
    given = machines.read(str(FOLDER / "l40s-x4.txt"), "NVIDIA L40S")
    box = topology(given)
    assert "not stated" not in box.source
    assert box.parameters["gpu_memory_gb_per_s"].value == 864


def test_names_of_models_find_their_rows():
    rows = facts.models()
    names = [row["name"] for row in rows]
    assert len(set(names)) == len(names)
    for row in rows:
        assert facts.model_of(f"NVIDIA {row['name']}")["name"] == row["name"]
        for device in row.get("devices", ()):
            assert facts.model_of_device(device) == f"NVIDIA {row['name']}"
        if "like" in row:
            assert row["like"] in plait.shipped_topologies()
    assert facts.model_of("") == {} and facts.model_of_device("0xffff") == ""


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("", "wanted the matrix of `nvidia-smi topo -m`"),
        ("hello\nworld\n", "wanted the matrix of `nvidia-smi topo -m`"),
        ("\tGPU0\tGPU1\nGPU0\t X \tNODE\n", "wanted a row for GPU1, found none"),
        ("\tGPU0\tGPU1\nGPU0\t X \nGPU1\tNODE\t X \n", "line 2: wanted 2 cells, found 1"),
        (
            "\tGPU0\tGPU1\nGPU0\t X \tFAST\nGPU1\tFAST\t X \n",
            "line 2: wanted one of X, NV#, PIX, PXB, PHB, NODE, SYS for GPU0 to GPU1, found FAST",
        ),
        (
            "\tGPU0\tGPU1\nGPU0\t X \tNODE\nGPU1\tSYS\t X \n",
            "wanted the same cell for GPU0 to GPU1 and back, found NODE and SYS",
        ),
        (
            f"\tGPU0\tGPU1\nGPU0\t X \tNV{'9' * 5000}\nGPU1\tNV4\t X \n",
            "for GPU0 to GPU1, found NV999999999999999999",
        ),
        (
            "\tGPU0\tGPU1\nGPU0\tSYS\tSYS\nGPU1\tSYS\t X \n",
            "line 2: wanted X for GPU0 to itself alone, found SYS for GPU0",
        ),
        (
            "\tGPU0\tGPU1\nGPU0\t X \t X \nGPU1\t X \t X \n",
            "line 2: wanted X for GPU0 to itself alone, found X for GPU1",
        ),
        (
            "\tGPU0\tGPU0\nGPU0\t X \tNV4\n",
            "line 1: wanted each name once, found GPU0 2 times",
        ),
        ("<system version='1'>", "wanted XML of NCCL, found"),
        (
            f"<system>{'<cpu>' * 2000}{'</cpu>' * 2000}</system>",
            "wanted XML of NCCL with at most 100 elements inside each other, found more",
        ),
        ("<system version='1'></system>", "wanted a GPU or more, found none"),
        (
            "<system><cpu numaid='x'></cpu></system>",
            "wanted a whole number as numaid of <cpu>, found x",
        ),
        ("<topology version='2.0'>", "wanted XML of hwloc, found"),
        (
            "<topology version='2.0'><object type='Machine'/></topology>",
            "wanted PCI devices of GPUs, found none; write the file with",
        ),
        (
            f"<topology version='2.0'>{'<object>' * 2000}{'</object>' * 2000}</topology>",
            "wanted XML of hwloc with at most 100 elements inside each other, found more",
        ),
    ],
)
def test_broken_files_are_refused_in_words(said, words, tmp_path):
    file = tmp_path / "machine.txt"
    file.write_text(said)
    with pytest.raises(plait.ParseError) as caught:
        machines.read(str(file))
    assert words in str(caught.value) and f"--from {file}" in str(caught.value)


def two_gpus(
    *links: str, dev: str = "1", bus: str = "0000:65:00.0", width: str = "16", more: str = ""
) -> str:
    """XML of NCCL with GPUs 0000:17:00.0 and 0000:65:00.0. links: of the first, of the second."""
    pci = '<pci busid="{}" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="{}">'
    first = f'{pci.format("0000:17:00.0", width)}<gpu dev="0">{links[0]}</gpu></pci>'
    second = f'{pci.format(bus, width)}<gpu dev="{dev}">{links[1]}</gpu></pci>'
    return f'<system version="1"><cpu numaid="0">{first}{second}{more}</cpu></system>'


def nvlink(target: str, count: str = "6") -> str:
    return f'<nvlink target="{target}" count="{count}" tclass="0x030200"/>'


THERE, BACK = nvlink("0000:65:00.0"), nvlink("0000:17:00.0")
PAIR = "wanted the same count of <nvlink> for 0000:17:00.0 to 0000:65:00.0 and back, found 6 and "


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (two_gpus(THERE, nvlink("0000:17:00.0", "3")), PAIR + "3"),
        (two_gpus(THERE, nvlink("0000:99:00.0")), PAIR + "0"),
        (
            two_gpus("", THERE),
            "wanted another GPU as target of <nvlink>, found the GPU's own busid",
        ),
        (two_gpus(THERE, BACK, dev="0"), 'wanted one GPU with dev="0", found 2'),
        (two_gpus("", "", bus="0000:17:00.0"), 'wanted one GPU with busid="0000:17:00.0", found 2'),
        (two_gpus(THERE, BACK) * 2, "wanted one <system>, the XML of one machine, found 2"),
        (
            two_gpus(nvlink("0000:65:00.0", "-6"), BACK),
            "wanted a whole number from 1 to 2147483647 as count of <nvlink>, found -6",
        ),
        (
            two_gpus(THERE, BACK, width="-1"),
            "wanted a whole number from 0 to 2147483647 as link_width of <pci>, found -1",
        ),
    ],
)
def test_xml_of_nccl_that_contradicts_itself_is_refused(said, words, tmp_path):
    test_broken_files_are_refused_in_words(said, words, tmp_path)


def test_links_to_gpus_that_a_job_does_not_see_are_left_out(tmp_path):
    file = tmp_path / "machine.xml"
    hidden = nvlink("0000:99:00.0")
    file.write_text(two_gpus(THERE + hidden, BACK + hidden))
    assert machines.read(str(file)).nvlinks == {(0, 1): 6}


@pytest.mark.parametrize("speed", ["1e400", "nan", "-3", "fast"])
def test_a_link_speed_of_hwloc_that_is_none_is_named(speed, tmp_path):
    gpu = "type='PCIDev' pci_busid='0000:17:00.0' pci_type='0302 [10de:2330] [10de:16c1] a1'"
    said = f"<topology version='2.0'><object {gpu} pci_link_speed='{speed}'/></topology>"
    words = f'found pci_link_speed {speed} of <object type="PCIDev" pci_busid="0000:17:00.0">'
    test_broken_files_are_refused_in_words(said, words, tmp_path)


def hwloc_gpus(values: str, bus: str = "0000:65:00.0") -> str:
    """XML of hwloc with GPUs 0000:17:00.0 and `bus`, and a matrix of NVLinks."""
    kind = "type='PCIDev' pci_type='0302 [10de:2330] [10de:16c1] a1'"
    gpus = (("1", "0000:17:00.0"), ("2", bus))
    objects = "".join(f"<object {kind} gp_index='{at}' pci_busid='{bus}'/>" for at, bus in gpus)
    matrix = f"<indexes>1 2</indexes><u64values>{values}</u64values>"
    return (
        f"<topology version='2.0'>{objects}"
        f"<distances2 name='NVLinkBandwidth'>{matrix}</distances2></topology>"
    )


@pytest.mark.parametrize("speed", ["9" * 400, "9" * 5000, "-26562", "1e3"])
def test_a_speed_of_nvlinks_of_hwloc_that_is_none_is_named(speed, tmp_path):
    words = f"found {speed[:30]} among the speeds of NVLinks"
    said = hwloc_gpus(f"0 {speed} {speed} 0")
    test_broken_files_are_refused_in_words(said, words, tmp_path)


def test_gpus_of_hwloc_at_one_address_are_refused(tmp_path):
    file = tmp_path / "machine.xml"
    file.write_text(hwloc_gpus("0 26562 26562 0"))
    assert machines.read(str(file)).nvlinks == {(0, 1): 1}
    said = hwloc_gpus("0 26562 26562 0", bus="0000:17:00.0")
    words = 'wanted one GPU with pci_busid="0000:17:00.0", found 2'
    test_broken_files_are_refused_in_words(said, words, tmp_path)


@pytest.mark.parametrize("number", ["9" * 5000, "x"])
def test_numbers_around_a_matrix_that_name_nothing_are_passed_over(number, tmp_path):
    file = tmp_path / "machine.txt"
    rows = f"GPU0\t X \tNV4\t0-3\t{number}\nGPU1\tNV4\t X \t4-7\t{number}\n"
    head = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\n"
    file.write_text(f"GPU {number}: NVIDIA H200 (UUID: GPU-1)\n{head}{rows}")
    assert [gpu.numa for gpu in machines.read(str(file)).gpus] == [0, 1]


def test_a_file_without_an_end_is_refused():
    with pytest.raises(plait.FileError, match="wanted at most 64 MiB, found more"):
        machines.read("/dev/zero")


def test_a_missing_file_is_named():
    with pytest.raises(plait.FileError, match=r"--from nothing\.txt: No such file"):
        machines.read("nothing.txt")


def test_the_command_writes_a_machine_that_plans_take(tmp_path):
    box = tmp_path / "box.json"
    done = plait_command(
        "topo", "--from", str(FOLDER / "l40s-x8.txt"), "--model", "NVIDIA L40S", "--write", str(box)
    )
    assert done.returncode == 0, done.stderr
    assert "switch" not in done.stderr and "source: nvidia-smi topo -m" in done.stdout
    done = plait_command("plan", "all_reduce", "-b", "20M", "-T", str(box), "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(plait_command("topo", "-T", str(box), "--json").stdout)
    assert said["name"] == "box" and len(said["devices"]) == 10


def test_a_machine_comes_by_standard_input_too():
    file = FOLDER / "l40s-x8.txt"
    words = [sys.executable, "-m", "plait.cli", "topo", "--json", "--from", "-"]
    done = subprocess.run(words, input=file.read_bytes(), capture_output=True, timeout=60)
    assert done.returncode == 0, done
    read = json.loads(plait_command("topo", "--json", "--from", str(file)).stdout)
    assert json.loads(done.stdout) == read | {"name": "machine"}
    done = subprocess.run(words, input=b"nothing", capture_output=True, timeout=60)
    assert done.returncode == 2 and b"--from -: wanted the matrix of" in done.stderr, done


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--from", "a", "-T", "mist"), "wanted one machine, found --from and --topology"),
        (("--from", "a", "--measure"), "--from goes without --measure"),
        (
            ("--measure", "--parameters"),
            "--measure goes without --parameters: it times this machine",
        ),
        (("--from", "a", "--new", "n.json"), "--new goes without --from"),
        (
            ("--new", "n.json", "-T", "mist", "--write", "b"),
            "--new goes without --topology, --write",
        ),
        (("--gpus", "3"), "--gpus: wanted --new FILE beside it, found none"),
        (("--switches", "0"), "--switches: wanted --new FILE beside it, found none"),
        (("--model", "L40S"), "--model: wanted --new FILE or --from FILE beside it, found none"),
        (("--force",), "--force: wanted --new FILE or --write FILE beside it, found none"),
        (("--list", "-T", "mist"), "--list goes without --topology"),
        (("--new", "n.json", "--gpus", "0"), "--gpus: wanted 1 to 64, found 0"),
        (("--new", "n.json", "--sockets", "5"), "--sockets: wanted 1 to the number of GPUs (4)"),
        (("--new", "n.json", "--sockets", "3"), "(4), as many GPUs on each, found 3"),
        (("--new", "n.json", "--gpus", "3", "--sockets", "2"), "as many GPUs on each, found 2"),
        (("--new", "n.json", "--pcie", "9"), "--pcie: wanted a generation from 1 to 6, found 9"),
        (("--new", "n.json", "--switches", "3"), "--switches: wanted 0, or as many on each of 2"),
        (("--new", "n.json", "--nvlink-pairs", "20"), "--nvlink-pairs: wanted 0 to 18"),
    ],
)
def test_numbers_that_describe_no_machine_are_refused(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = plait_command("topo", *words)
    assert (done.returncode, done.stdout) == (2, "") and message in done.stderr, done
    assert not (tmp_path / "n.json").exists()


def test_an_odd_number_of_gpus_has_one_socket_by_default(tmp_path):
    file = tmp_path / "box.json"
    assert plait_command("topo", "--new", str(file), "--gpus", "3").returncode == 0
    devices = plait.load_topology(str(file)).devices
    assert sum(device.kind != "gpu" for device in devices) == 1


def test_a_template_has_what_was_asked_for():
    said = machines.template("box", gpus=8, sockets=2, pcie=5, nvlink_pairs=4, switches=4)
    box = plait.Topology.from_json(json.dumps(said))
    assert len(box.rank_devices()) == 8
    assert set(links(box, "nvlink")) == {(f"gpu{a}", f"gpu{a ^ 1}") for a in range(8)}
    pcie = links(box, "pcie")
    assert pcie["gpu7", "numa1"]["gb_per_s"] == pytest.approx(55.296)
    assert pcie["gpu7", "numa1"]["resources"][-1] == "switch3.up"
    assert "guess" in box.source and said["network"]["nodes"] == 1


def hwloc(devices: str) -> str:
    """A machine with one CPU and these (bus, class, vendor and device) PCI devices."""
    said = "<topology version='2.0'><object type='Machine'><object type='Package' gp_index='1'>"
    said += "<object type='NUMANode' os_index='0'/>"
    said += "<object type='NUMANode' os_index='1' subtype='GPUMemory'/>"
    for key, device in enumerate(devices.split(), 10):
        bus, kind, ids = device.split("/")
        said += (
            f"<object type='PCIDev' gp_index='{key}' pci_busid='0000:{bus}:00.0' "
            f"pci_type='{kind} [{ids}] [0000:0000] a1 00' pci_link_speed='31.5'/>"
        )
    return f"{said}</object></object></topology>"


@pytest.mark.parametrize(
    ("devices", "addresses"),
    [
        ("47/0302/10de:20b2 07/0302/10de:20b2", ["0000:07:00.0", "0000:47:00.0"]),
        ("01/0300/10de:2b85 0e/0300/1002:13c0", ["0000:01:00.0"]),  # beside a processor's GPU
        ("05/1200/1002:74a1 26/1200/1002:74a1", ["0000:05:00.0", "0000:26:00.0"]),
    ],
)
def test_gpus_of_hwloc_are_those_of_a_vendor_in_the_order_of_addresses(
    devices, addresses, tmp_path
):
    file = tmp_path / "machine.xml"
    file.write_text(hwloc(devices))
    machine = machines.read(str(file))
    assert [gpu.address for gpu in machine.gpus] == addresses
    assert machine.numa_nodes == [0]  # the memory of a GPU is no node of the host


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("<topology><object type='Machine'/></topology>", "wanted XML of hwloc 2 or later"),
        (
            "<topology version='2'><object type='NUMANode' os_index='x'/></topology>",
            "wanted numbers and PCI types as hwloc writes them",
        ),
    ],
)
def test_odd_files_of_hwloc_are_refused_in_words(said, words, tmp_path):
    file = tmp_path / "machine.xml"
    file.write_text(said)
    with pytest.raises(plait.ParseError, match=words):
        machines.read(str(file))


def matrix(cell: str, gpus: int, behind: str) -> str:
    names = [f"GPU{i}" for i in range(gpus)]
    said = "\t".join(["", *names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]) + "\n"
    for name in names:
        cells = [" X " if name == other else cell for other in names]
        said += "\t".join([name, *cells, behind]) + "\n"
    return said


def test_few_gpus_behind_nvswitch_share_ports_if_their_model_is_known(tmp_path):
    file = tmp_path / "machine.txt"
    file.write_text(matrix("NV6", 4, "0-23\t0\t\tN/A"))
    assert machines.read(str(file), "Tesla V100-SXM3-32GB").switch_links == dict.fromkeys(
        range(4), 6
    )
    assert machines.read(str(file), "NVIDIA H100 80GB HBM3").switch_links == {}  # direct links


def test_the_numa_node_is_taken_from_its_own_column(tmp_path):
    file = tmp_path / "machine.txt"
    file.write_text(matrix("NV6", 2, "N/A\t1\t\t4"))
    assert [gpu.numa for gpu in machines.read(str(file)).gpus] == [1, 1]


def test_a_model_is_not_part_of_a_word():
    for name in ("NVIDIA RTX A4000", "NVIDIA RTX A3000", "NVIDIA T400"):
        assert facts.model_of(name) == {}
    assert facts.model_of("NVIDIA GeForce RTX 5090")["name"] == "RTX 5090"
