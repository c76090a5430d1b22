# Two network namespaces that a cable joins stand for two hosts, 10.77.0.1 and 10.77.0.2. Run it as the root of a user
# namespace, which everybody is allowed to be where the system allows user namespaces at all:
#
#     unshare --user --map-root-user --net --pid --fork --mount-proc --kill-child sh two_hosts.sh fifo command...
#
# The command runs on both, with the host's number added, and writes to host_0 and host_1. When somebody has written
# into the fifo, the cable is pulled out. Ends when both have ended.

set -eu
fifo=$1
shift

# A network namespace lasts as long as the process in it, which ends with its standard input.
mkfifo plug
unshare --net cat plug &
other=$!
exec 9> plug

ip link set lo up
# The other has its network when it is not this one.
while [ "$(readlink /proc/$other/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do :; done
ip link add cable0 type veth peer name cable1 netns $other
on_other() { nsenter --target $other --net "$@"; }
ip address add 10.77.0.1/24 dev cable0
ip link set cable0 up
on_other ip link set lo up
on_other ip address add 10.77.0.2/24 dev cable1
on_other ip link set cable1 up

mkfifo "$fifo"
"$@" 0 > host_0 2>&1 9>&- &
first=$!
on_other "$@" 1 > host_1 2>&1 9>&- &
second=$!
read -r word < "$fifo"
ip link set cable0 down
wait $first || echo "host 0: exit code $?"
wait $second || echo "host 1: exit code $?"
exec 9>&-
