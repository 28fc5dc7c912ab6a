#!/bin/sh
# Installs adverb from its tarball, for one user, without root:
#
#   install.sh [--prefix FOLDER] [--from FILE-OR-URL] [--sha256 SUM]
#   install.sh --uninstall [--prefix FOLDER]
#
# FOLDER is ~/.local unless you name another: the command goes to FOLDER/bin, its libraries to FOLDER/lib/adverb. Without --from, the tarball of this version
# is fetched and compared with the sum of its release. Where adverb cannot work, this says so and leaves nothing behind.
set -eu

version=0.1.0
releases=https://github.com/adverb-rdma/adverb/releases/download
prefix=${HOME:-}/.local from="" sum="" remove=""

fail() {
  printf 'install.sh: %s\n' "$*" >&2
  exit 1
}

while [ $# -gt 0 ]; do
  case $1 in
    --prefix | --from | --sha256) [ $# -gt 1 ] || fail "$1 needs a value" ;;
  esac
  case $1 in
    --prefix) prefix=$2; shift 2 ;;
    --from) from=$2; shift 2 ;;
    --sha256) sum=$2; shift 2 ;;
    --uninstall) remove=yes; shift ;;
    -h | --help) sed -n '2,/^set -/s/^# \{0,1\}//p' "$0"; exit ;;
    *) fail "$1: not an option; see --help" ;;
  esac
done
case $prefix in
  /*) ;;
  *) prefix=$PWD/$prefix ;;
esac

# Every path that a tarball brings, below the prefix.
paths="bin/adverb lib/adverb share/adverb share/doc/adverb share/man/man1/adverb.1"
remove_from() {
  for path in $paths; do
    rm -rf "${1:?}/$path"
  done
}
# Folders that were there before may have something in them, and stay.
remove_empty() {
  for folder in bin lib share/doc share/man/man1 share/man share ""; do
    rmdir "$1/$folder" 2>/dev/null || :
  done
}

if dpkg -S "$prefix/bin/adverb" >/dev/null 2>&1; then
  fail "$prefix has adverb from a Debian package; remove that with: apt remove adverb"
fi
if [ -n "$remove" ]; then
  { [ -e "$prefix/bin/adverb" ] && [ -d "$prefix/lib/adverb" ]; } || fail "there is no adverb in $prefix"
  remove_from "$prefix"
  remove_empty "$prefix"
  echo "adverb is gone from $prefix"
  exit
fi

[ "$(uname -s)" = Linux ] || fail "adverb is for Linux, not for $(uname -s)"
machine=$(uname -m)
case $machine in
  x86_64 | aarch64) ;;
  *) fail "adverb is for x86_64 and aarch64, not for $machine" ;;
esac
library=$(getconf GNU_LIBC_VERSION 2>/dev/null) || library=""
[ -n "$library" ] || fail "adverb needs the GNU C library, which this system does not have (Alpine Linux has musl); a container of Debian, Ubuntu or Fedora does"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

fetch() {
  if command -v curl >/dev/null; then
    curl -fsSL --retry 3 -o "$2" "$1"
  elif command -v wget >/dev/null; then
    wget -q -O "$2" "$1"
  else
    fail "neither curl nor wget is here to fetch $1; give a file with --from"
  fi || fail "cannot fetch $1"
}

name=adverb-$version-$machine-linux.tar.gz
if [ -z "$from" ]; then
  from=$releases/v$version/$name
  [ -n "$sum" ] || { fetch "$releases/v$version/SHA256SUMS" "$work/sums" && sum=$(awk -v name="$name" '$2 == name {print $1}' "$work/sums"); }
  [ -n "$sum" ] || fail "SHA256SUMS of version $version does not name $name"
fi
case $from in
  *://*) fetch "$from" "$work/tarball" ;;
  *) [ -f "$from" ] || fail "there is no file $from"; cp "$from" "$work/tarball" ;;
esac
if [ -n "$sum" ]; then
  found=$(sha256sum "$work/tarball" | cut -d ' ' -f 1)
  [ "$found" = "$sum" ] || fail "$from has the SHA-256 sum $found, not $sum"
fi
mkdir "$work/tree"
tar -xzf "$work/tarball" -C "$work/tree" --strip-components=1 2>"$work/why" || fail "$from is not a tarball of adverb: $(grep -m 1 . "$work/why")"
[ -f "$work/tree/bin/adverb" ] || fail "$from is not a tarball of adverb"
# The programs themselves say whether they suit: another processor, an older C library.
if ! "$work/tree/bin/adverb" run -- true 2>"$work/why" || grep -q 'cannot be preloaded' "$work/why"; then
  advice=""
  ! grep -q 'Permission denied' "$work/why" || advice=" (if programs may not run in $work, set TMPDIR to another folder)"
  fail "adverb does not run on this machine ($machine, $library): $(head -n 1 "$work/why")$advice"
fi

{ mkdir -p "$prefix" 2>/dev/null && [ -w "$prefix" ]; } || fail "$prefix cannot be written to; choose another with --prefix"
# All of it is there before the version before goes.
new=$prefix/.adverb-$$
if ! cp -R -P "$work/tree" "$new" 2>"$work/why"; then
  rm -rf "$new"
  remove_empty "$prefix"
  fail "cannot write to $prefix: $(head -n 1 "$work/why")"
fi
remove_from "$prefix"
for path in $paths; do
  mkdir -p "$prefix/${path%/*}"
  mv "$new/$path" "$prefix/$path"
done
rm -rf "$new"
echo "adverb $version is in $prefix"
case :$PATH: in
  *:"$prefix/bin":*) ;;
  *) echo "Put its command on your path: export PATH=\"$prefix/bin:\$PATH\"" ;;
esac
