#!/usr/bin/env bash
# What some tests need besides Python, out of Debian, as root: poolers, brokers, a container engine with a PostgreSQL for
# it, and what makes a clock wrong.
set -euo pipefail
cd "$(dirname "$0")/.."
export DEBIAN_FRONTEND=noninteractive

# One that keeps prepared statements. The binaries of later releases want a later libc; their source does not.
release=trixie
bouncer=$PWD/.cache/pgbouncer

build_bouncer() {
    local work=$bouncer/build keys=/usr/share/keyrings/debian-archive-keyring.gpg
    rm -rf "$work"
    mkdir -p "$work"/{lists/partial,archives/partial,none}
    printf 'deb-src [signed-by=%s] http://deb.debian.org/debian %s main\n' "$keys" "$release" >"$work/sources.list"
    cd "$work"
    local apt=(apt-get -qq -o "Dir::Etc::sourcelist=$work/sources.list" -o "Dir::Etc::sourceparts=$work/none"
        -o "Dir::State::lists=$work/lists" -o APT::Sandbox::User=root)
    "${apt[@]}" update
    "${apt[@]}" source pgbouncer
    cd pgbouncer-*/
    ./configure --without-cares --without-systemd --without-pam
    make -j"$(nproc)" pgbouncer
    ./pgbouncer --version
    mv pgbouncer "$bouncer/"
}
export -f build_bouncer
export bouncer release

wanted=()
command -v pgbouncer >/dev/null || wanted+=(pgbouncer)
command -v nats-server >/dev/null || wanted+=(nats-server)
command -v redis-server >/dev/null || wanted+=(redis-server)
command -v rabbitmq-server >/dev/null || wanted+=(rabbitmq-server)
command -v dockerd >/dev/null || wanted+=(docker.io containerd runc iptables)
[ -x /usr/lib/postgresql/15/bin/postgres ] || wanted+=(postgresql-15)
[ -e /usr/lib/*/faketime/libfaketime.so.1 ] || wanted+=(libfaketime)
if [ ! -x "$bouncer/pgbouncer" ]; then
    command -v gcc >/dev/null || wanted+=(gcc)
    command -v make >/dev/null || wanted+=(make)
    command -v dpkg-source >/dev/null || wanted+=(dpkg-dev)
    command -v pkg-config >/dev/null || wanted+=(pkg-config)
    [ -e /usr/include/event2/event.h ] || wanted+=(libevent-dev)
    [ -e /usr/include/openssl/ssl.h ] || wanted+=(libssl-dev)
fi

if [ ${#wanted[@]} -gt 0 ]; then
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
fi

if [ ! -x "$bouncer/pgbouncer" ]; then
    mkdir -p "$bouncer"
    timeout 60 bash -euo pipefail -c build_bouncer >"$bouncer/log" 2>&1 </dev/null || {
        printf 'not built: a pgbouncer that keeps prepared statements, because of\n'
        tail -n 3 "$bouncer/log" | cut -c1-200
    }
    rm -rf "$bouncer/build"
fi
