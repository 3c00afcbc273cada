#!/bin/sh
# A worker in POSIX shell. It runs a command for each job, with the payload on its stdin.
#
#     examples/worker.sh QUEUE COMMAND [ARG]...
#
# COMMAND exits with 0: the job is completed, and what it wrote to stdout is the result.
#                  100: the job is failed, without another try.
#       anything else: the job is tried again later. The error is the end of its stderr.
#
# COMMAND finds the job's id and all else that `holdfast lease` writes in the file $LEASE_FILE. While it
# runs, the lease is extended; when the lease is lost or the job is cancelled, COMMAND gets SIGTERM.
# SIGTERM or Ctrl-C stop the worker after the job that runs.
#
#     HOLDFAST=holdfast   how the command line is called; HOLDFAST_URL says where the server is
#     LEASE=30            seconds until others get the job of a worker that died
#     EVERY=10            seconds between two extensions
#     WAIT=5              seconds for which it waits for a job before it asks again
#     UNTIL_EMPTY=1       end when there is no job

set -u
[ $# -ge 2 ] || { echo "usage: $0 QUEUE COMMAND [ARG]..." >&2; exit 2; }
queue=$1
shift
holdfast=${HOLDFAST:-holdfast} lease=${LEASE:-30} every=${EVERY:-10}

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
stopping=
trap 'stopping=1' TERM INT

keep() {    # Extend the lease of the job while its command, the process $1, runs.
  while sleep "$every" && kill -0 "$1" 2>/dev/null; do
    $holdfast extend "$queue" --seconds "$lease" <"$work/lease"
    case $? in 4 | 5) kill "$1"; return ;; esac    # Lost, or cancelled.
  done
}

settle() {    # Tell how the command ended: $1 is its exit code.
  case $1 in
    0)
      $holdfast complete "$queue" --result-file "$work/result" <"$work/lease" 2>"$work/error"
      case $? in
        0 | 4) ;;    # Completed, or not ours any more.
        *) cat "$work/error" >&2    # The result is too big, for example.
           $holdfast retry "$queue" --error-file "$work/error" <"$work/lease" ;;
      esac ;;
    100) $holdfast fail "$queue" --error-file "$work/error" <"$work/lease" ;;
    *) $holdfast retry "$queue" --error-file "$work/error" <"$work/lease" ;;
  esac
}

while [ -z "$stopping" ]; do
  $holdfast lease "$queue" --seconds "$lease" --wait "${WAIT:-5}" \
    --payload-file "$work/payload" >"$work/lease"
  case $? in
    0) ;;
    3) [ -z "${UNTIL_EMPTY:-}" ] || exit 0; continue ;;    # There is no job.
    2 | 126 | 127) exit 2 ;;    # Called wrongly, or there is no such command.
    *) sleep 1; continue ;;    # No server, for example. The reason is on stderr.
  esac

  LEASE_FILE="$work/lease" "$@" <"$work/payload" >"$work/result" 2>"$work/error" &
  job=$!
  keep "$job" </dev/null >/dev/null 2>&1 &
  keeper=$!
  wait "$job"
  code=$?
  while kill -0 "$job" 2>/dev/null; do    # A signal to us ended the wait, not the command.
    wait "$job"
    code=$?
  done
  kill -KILL "$keeper" 2>/dev/null    # Not TERM: it may not have reset our trap yet.

  settle "$code"
done
