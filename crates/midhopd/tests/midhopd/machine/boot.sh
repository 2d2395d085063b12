# Boots a systemd that knows no unit of this host, in namespaces of its own, over a copy of the root that is
# written to memory. Nothing of the kernel that all namespaces share is writable there. In a mount namespace of
# its own already. $1: an empty directory; $2: an empty control group; then what else can be seen there, not to
# be written.
set -eu
directory=$1
echo $$ > "$2/cgroup.procs"
exec unshare --pid --cgroup --net --uts --ipc --fork --kill-child=KILL sh -eu -c '
    directory=$1
    shift 2
    # The process as the host knows it, since /proc is still that of the host.
    read -r pid rest < /proc/self/stat
    exec 3> "$directory/pid"
    top="$directory/top"
    mkdir "$top"
    mount -t tmpfs none "$top"
    mkdir "$top/written" "$top/work" "$top/root"
    mount -t overlay -o "lowerdir=/,upperdir=$top/written,workdir=$top/work" none "$top/root"
    cd "$top/root"
    mount -t proc none proc
    mount --bind proc/sys proc/sys
    mount -o remount,bind,ro proc/sys
    mount -t sysfs -o ro none sys
    mount -t cgroup2 none sys/fs/cgroup
    for volatile in dev run tmp; do
        mount -t tmpfs -o mode=755 none $volatile
    done
    for device in null zero full random urandom tty; do
        touch dev/$device
        mount --bind /dev/$device dev/$device
    done
    mkdir dev/shm dev/pts
    mount -t tmpfs none dev/shm
    mount -t devpts none dev/pts
    ln -s pts/ptmx dev/ptmx
    ln -s /proc/self/fd dev/fd
    for seen; do
        mkdir -p "./$seen"
        mount --bind -o ro "$seen" "./$seen"
    done
    ip link set lo up
    rm -rf etc/systemd/system
    # Packages put their units here.
    mount -t tmpfs -o mode=755 none lib/systemd/system
    mkdir -p etc/systemd/system/midhopd.service.d
    for target in sysinit basic shutdown machine; do
        echo "[Unit]" > "etc/systemd/system/$target.target"
    done
    printf "[Service]\nStandardOutput=append:/said\nStandardError=append:/said\n" \
        > etc/systemd/system/midhopd.service.d/log.conf
    touch machine-of-a-test
    export container=midhop SYSTEMD_UNIT_PATH=/etc/systemd/system:/lib/systemd/system
    # Only once it has its own root can it be entered.
    exec chroot . sh -c "
        echo $pid >&3
        exec 3>&-
        exec /lib/systemd/systemd --system --unit=machine.target --log-target=null
    "
' sh "$@"
