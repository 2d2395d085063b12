#!/bin/sh
# Builds the BPF objects from programs/*.bpf.c.
#
#   build-objects.sh          builds into a temporary directory and compares with prebuilt/
#   build-objects.sh --write  builds and replaces prebuilt/
#
# Exit status: 0 equal or written, 1 different, 77 no compiler (nothing was compared), 2 build failed.
# The comparison is byte for byte once debug information other than BTF is stripped. Another release
# of clang may legitimately order instructions otherwise; prebuilt/MANIFEST names the one that was used.
set -eu
cd "$(dirname "$0")"

clang=${CLANG:-clang}
strip=${LLVM_STRIP:-llvm-strip}
for tool in "$clang" "$strip"; do
	if ! command -v "$tool" >/dev/null 2>&1; then
		echo "skipped: $tool is not installed (Debian: apt-get install clang llvm); prebuilt objects were not compared" >&2
		exit 77
	fi
done

built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
root=$(pwd)
for source in programs/*.bpf.c; do
	object=$built/$(basename "$source" .c).o
	# -mcpu=v3: Linux 5.1 and later. The prefix map keeps the builder's directories out of the object.
	"$clang" -target bpf -mcpu=v3 -O2 -g -Wall -Wextra -Werror -Wno-unused-parameter \
		-Wno-unused-function -ffreestanding -nostdinc -ffile-prefix-map="$root"=midhop-bpf \
		-c "$source" -o "$object" || exit 2
	"$strip" -g "$object" || exit 2
done
(
	cd "$built"
	echo "# Built by crates/bpf/build-objects.sh --write with: $("$clang" --version | head -n 1)"
	sha256sum -- *.bpf.o
) >"$built/MANIFEST"

if [ "${1:-}" = "--write" ]; then
	mkdir -p prebuilt
	rm -f prebuilt/*.bpf.o
	cp "$built"/*.bpf.o "$built/MANIFEST" prebuilt/
	echo "wrote $(ls prebuilt/*.bpf.o | wc -l) objects to $(basename "$root")/prebuilt"
	exit 0
fi

status=0
for object in "$built"/*.bpf.o prebuilt/*.bpf.o; do
	name=$(basename "$object")
	if ! cmp -s "$built/$name" "prebuilt/$name"; then
		echo "differs: prebuilt/$name is not what programs/${name%.o}.c compiles to; run $0 --write" >&2
		status=1
	fi
done
(cd prebuilt && grep -v '^#' MANIFEST | sha256sum --check --quiet) || status=1
[ $status -eq 0 ] && echo "prebuilt objects are what the sources compile to ($(ls prebuilt/*.bpf.o | wc -l) objects)"
exit $status
