"""`python -m plait`: the `plait` command, and plait's folders for builds of C and C++ programs.

--includes      -I and the folder of plait's headers
--cmakedir      for find_package(plait): cmake -Dplait_DIR=$(python -m plait --cmakedir)
--pkgconfigdir  for PKG_CONFIG_PATH
--libdir        the folder of libplait.so
"""

import sys

from plait import places, standard_output

FLAGS = {
    "--includes": lambda: f"-I{places.include()}",
    "--cmakedir": places.cmake,
    "--pkgconfigdir": places.pkgconfig,
    "--libdir": places.libraries,
}

if __name__ == "__main__":
    if len(sys.argv) > 1 and all(word in FLAGS for word in sys.argv[1:]):
        with standard_output.checked():
            print(" ".join(str(FLAGS[word]()) for word in sys.argv[1:]))
    elif any(word in FLAGS for word in sys.argv[1:]):
        idle = " ".join(word for word in sys.argv[1:] if word not in FLAGS)
        print(f"plait: wanted {', '.join(FLAGS)} alone, found {idle} too", file=sys.stderr)
        sys.exit(2)
    else:
        from plait.cli import main

        main()
