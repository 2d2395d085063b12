# Boots a systemd that knows no unit of this host, in namespaces of its own, over a copy of the root that is
# written to memory. In a mount namespace of its own already. $1: an empty directory; then what else can be
# seen there.
set -eu
directory=$1
mount --make-rprivate /
mkdir "$directory/cgroup"
mount -t cgroup2 none "$directory/cgroup"
own="$directory/cgroup/midhop-machine-$$"
mkdir "$own"
echo $$ > "$own/cgroup.procs"
exec unshare --pid --cgroup --net --uts --ipc --fork --kill-child=KILL sh -eu -c '
    directory=$1
    shift
    # The process as the host knows it, since /proc is still the host'\''s.
    read -r pid rest < /proc/self/stat
    echo "$pid" > "$directory/pid"
    top="$directory/top"
    mkdir "$top"
    mount -t tmpfs none "$top"
    mkdir "$top/written" "$top/work" "$top/root"
    mount -t overlay -o "lowerdir=/,upperdir=$top/written,workdir=$top/work" none "$top/root"
    cd "$top/root"
    mount -t proc none proc
    mount -t sysfs none sys
    mount -t cgroup2 none sys/fs/cgroup
    mount --rbind /dev dev
    mount -t tmpfs none run
    mount -t tmpfs none tmp
    for seen; do
        mkdir -p "./$seen"
        mount --rbind "$seen" "./$seen"
    done
    ip link set lo up
    rm -rf etc/systemd/system
    mkdir -p etc/systemd/system/midhopd.service.d
    for target in sysinit basic shutdown machine; do
        echo "[Unit]" > "etc/systemd/system/$target.target"
    done
    printf "[Service]\nStandardOutput=append:/said\nStandardError=append:/said\n" \
        > etc/systemd/system/midhopd.service.d/log.conf
    export container=midhop SYSTEMD_UNIT_PATH=/etc/systemd/system
    exec chroot . /lib/systemd/systemd --system --unit=machine.target --log-target=console
' sh "$@"
