#!/bin/bash
# Pretended hosts on one machine: hosts.sh [-r RATE] N COMMAND... runs the command beside N hosts named ph1..phN, each with
# network, PID, IPC, UTS and mount namespaces of its own and its own /dev/shm; links p1..pN lead from a bridge here to them.
# RATE, such as 1gbit: of each link, either way (tbf).
# Wants user namespaces, or root; ends with 77 and a reason where they are not to be had. All ends with the command.
# As ssh: hosts.sh @ [-options] phK WORDS... runs the words on a host.
set -e
if [ "$1" = @ ]; then
  shift
  while [ "${1#-}" != "$1" ]; do shift; done
  host=${1##*[.h]}; shift
  exec nsenter -t "$(cat "$HOSTS/$host")" --net --uts --pid --ipc --mount -- /bin/sh -c "cd '$PWD'; export TMPDIR=/dev/shm; $*"
fi
apart="--net --mount --pid --fork --kill-child --mount-proc"
if [ -z "$HOSTS" ]; then
  for tool in ip nsenter unshare; do command -v $tool >/dev/null || { echo "there is no $tool"; exit 77; }; done
  user="--user --map-root-user"
  unshare $user $apart ip link set lo up 2>/dev/null || user=
  why=$(unshare $user $apart sh -c "ip link add br0 type bridge && mount -t tmpfs tmpfs /dev/shm" 2>&1) ||
    { echo "namespaces are not permitted: $why"; exit 77; }
  HOSTS=/run exec unshare $user $apart "$0" "$@"
fi
rate=
if [ "$1" = -r ]; then rate=$2; shift 2; fi
count=$1; shift
export HOSTS
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /dev/shm
ip link set lo up; ip link add br0 type bridge; ip addr add 192.0.2.100/24 dev br0; ip link set br0 up
{ echo "127.0.0.1 localhost"; echo "192.0.2.100 head"; for k in $(seq "$count"); do echo "192.0.2.$k ph$k"; done; } > /run/hosts
: > /run/resolv
mount --bind /run/hosts /etc/hosts
mount --bind /run/resolv "$(readlink -f /etc/resolv.conf)"
for k in $(seq "$count"); do
  unshare --net --uts --ipc --mount --pid --fork --mount-proc sh -c \
    "hostname ph$k; mount -t tmpfs tmpfs /dev/shm; mount -t sysfs sysfs /sys; ip link set lo up; touch /run/up$k; exec sleep 3600" &
  for wait in $(seq 100); do [ -e /run/up"$k" ] && break; sleep 0.02; done
  pgrep -P $! > /run/"$k"
  ip link add p"$k" type veth peer name e0 netns "$(cat /run/"$k")"
  ip link set p"$k" master br0 up
  nsenter -t "$(cat /run/"$k")" --net sh -c "ip addr add 192.0.2.$k/24 dev e0; ip link set e0 up"
  [ -z "$rate" ] && continue
  shape="root tbf rate $rate burst 256k latency 50ms"
  why=$( { tc qdisc add dev p"$k" $shape && nsenter -t "$(cat /run/"$k")" --net tc qdisc add dev e0 $shape; } 2>&1) ||
    { echo "links cannot be shaped: $why"; exit 77; }
done
"$@"
