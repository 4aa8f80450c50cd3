# keep_report.sh <folder> <compiler> <arguments>: runs the compiler and keeps what it says about
# registers and spills in <folder>, under the name of the source.
folder=$1
shift
name=$(basename "$(printf '%s\n' "$@" | grep '\.cu$' | tail -n 1)" .cu)
if [ -z "$name" ]; then exec "$@"; fi
mkdir -p "$folder"
report="$folder/$name.$$"
"$@" 2>"$report"
status=$?
grep -v -E 'ptxas info|bytes stack frame' "$report" >&2
mv "$report" "$folder/$name.txt"
exit $status
