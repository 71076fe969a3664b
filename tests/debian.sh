#!/usr/bin/env bash
# What some tests need besides Python, out of Debian, as root: a pooler, and a container engine with a PostgreSQL for it.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive

wanted=()
command -v pgbouncer >/dev/null || wanted+=(pgbouncer)
command -v dockerd >/dev/null || wanted+=(docker.io containerd runc iptables)
[ -x /usr/lib/postgresql/15/bin/postgres ] || wanted+=(postgresql-15)
[ ${#wanted[@]} -gt 0 ] || exit 0

# No package may start a server of its own: the tests start what they need.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    trap 'rm -f "$policy"' EXIT
fi
apt-get update -qq || true
for package in "${wanted[@]}"; do
    # One that a release does not have leaves out the tests it is for, and they say so.
    apt-get install -y -qq --no-install-recommends "$package" >/dev/null || printf 'not installed: %s\n' "$package"
done
