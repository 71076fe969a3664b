#!/usr/bin/env bash
# A part of the tests with --pg=container, on a Docker engine and an image made out of what this machine has:
# PostgreSQL 15 of Debian, no image registry. Needs root where no engine runs. Says why where it is impossible.
set -euo pipefail
cd "$(dirname "$0")/.."

python=.venv/bin/python
programs=/usr/lib/postgresql/15
image=aiopgq-postgres:15
work=$(mktemp -d /tmp/aiopgq-container.XXXXXX)
started=

leave_out() {
    printf 'left out: the tests in a container: %s\n' "$1"
    case " ${AIOPGQ_CI_REQUIRE:-} " in *" container "*) exit 1 ;; esac
    exit 0
}

clean_up() {
    if [ -n "$started" ]; then
        # Whoever killed the tests left their container.
        docker ps --all --quiet | xargs --no-run-if-empty docker rm --force --volumes >/dev/null || true
        kill "$(cat "$work/dockerd.pid")" 2>/dev/null || true
        for _ in $(seq 100); do [ -e "$work/dockerd.pid" ] || break; sleep 0.1; done
        # The engine leaves its bridge and its rules behind, and lets nothing be forwarded any more.
        [ -n "$bridge" ] || ip link delete docker0 2>/dev/null || true
        for table in filter nat; do
            iptables -t "$table" -F || true
            iptables -t "$table" -X || true
        done
        iptables -P FORWARD ACCEPT || true
        grep " $work/" /proc/mounts | cut -d' ' -f2 | sort --reverse | xargs --no-run-if-empty umount || true
        # What was there before, if anything, comes back as it was.
        iptables-restore <"$work/iptables.before" || true
    fi
    rm -rf "$work"
}
trap clean_up EXIT

start_engine() {
    docker info >/dev/null 2>&1 && return
    [ "$(id -u)" = 0 ] || leave_out 'no engine runs, and only root can start one'
    command -v dockerd >/dev/null && command -v iptables >/dev/null ||
        leave_out 'apt-get install -y --no-install-recommends docker.io containerd runc iptables'
    iptables-save >"$work/iptables.before" || leave_out 'iptables does not work here'
    bridge=$(ip link show docker0 2>/dev/null || true)
    started=yes
    setsid dockerd --pidfile "$work/dockerd.pid" --host "unix://$work/docker.sock" --data-root "$work/data" \
        --exec-root "$work/exec" >"$work/dockerd.log" 2>&1 </dev/null &
    export DOCKER_HOST="unix://$work/docker.sock"
    for _ in $(seq 150); do
        docker info >/dev/null 2>&1 && return
        sleep 0.1
    done
    tail -5 "$work/dockerd.log"
    leave_out 'dockerd does not start, see above'
}

make_image() {
    docker image inspect "$image" >/dev/null 2>&1 && return
    [ -x "$programs/bin/postgres" ] || leave_out 'apt-get install -y postgresql-15'
    local root=$work/root tool
    mkdir -p "$root"/{etc,proc,sys,dev,root,run/postgresql,tmp,usr/bin,usr/lib/locale,usr/share/postgresql,usr/lib/postgresql,usr/lib64,var/lib/postgresql}
    chmod 1777 "$root/tmp"
    for tool in bin lib lib64; do ln -s "usr/$tool" "$root/$tool"; done
    printf 'root:x:0:0:root:/root:/bin/bash\npostgres:x:999:999::/var/lib/postgresql:/bin/bash\n' >"$root/etc/passwd"
    printf 'root:x:0:\npostgres:x:999:\n' >"$root/etc/group"
    cp -a "$programs" "$root/usr/lib/postgresql/"
    rm -rf "$root$programs"/lib/{llvmjit*,bitcode}
    cp -aL /usr/share/postgresql/15 "$root/usr/share/postgresql/"
    cp -a /usr/share/zoneinfo "$root/usr/share/"
    cp -a /usr/lib/locale/C.utf8 "$root/usr/lib/locale/"
    for tool in bash sh id mkdir chown chmod cat rm setpriv; do cp -L "$(type -P "$tool")" "$root/usr/bin/"; done
    # With a merged /usr every library lies below it.
    # What is a script has none, and ldd ends badly for it.
    { find "$root/usr/bin" "$root$programs" -type f \( -perm -u+x -o -name '*.so' \) -exec ldd {} + 2>/dev/null || true; } |
        grep -oE '/(usr/)?lib[^ ]* \(0x' | cut -d' ' -f1 | sort -u |
        while read -r tool; do install -D "$(readlink -f "$tool")" "$root/usr/${tool#/usr}"; done
    cat >"$root/usr/bin/entrypoint" <<'SH'
#!/bin/bash
# What tests need of the official image: POSTGRES_USER, POSTGRES_PASSWORD, POSTGRES_DB.
set -e
export PGDATA=/var/lib/postgresql/data
if [ "$(id -u)" = 0 ]; then
    mkdir -p "$PGDATA"
    chown -R postgres:postgres /var/lib/postgresql /run/postgresql
    exec setpriv --reuid=postgres --regid=postgres --init-groups "$0" "$@"
fi
initdb -U "$POSTGRES_USER" --pwfile=<(printf '%s\n' "$POSTGRES_PASSWORD") -E UTF8 --locale=C.UTF-8 --no-sync
printf "listen_addresses = '*'\nunix_socket_directories = '/run/postgresql'\n" >>"$PGDATA/postgresql.conf"
printf 'host all all all scram-sha-256\n' >>"$PGDATA/pg_hba.conf"
pg_ctl -w start -o "-c listen_addresses=''"
if [ "$POSTGRES_DB" != postgres ]; then
    createdb -h /run/postgresql -U "$POSTGRES_USER" "$POSTGRES_DB"
fi
pg_ctl -w -m fast stop
# testcontainers waits for this line, of the second start.
exec postgres
SH
    chmod 755 "$root/usr/bin/entrypoint"
    tar -C "$root" --numeric-owner -c . | docker import -c "ENV PATH=$programs/bin:/usr/bin LANG=C.UTF-8" \
        -c 'EXPOSE 5432' -c 'ENTRYPOINT ["entrypoint"]' - "$image" >/dev/null
    rm -rf "$root"
}

start_engine
make_image
unset AIOPGQ_TEST_DSN AIOPGQ_DSN AIOPGQ_PG_BIN DATABASE_URL "${!PG@}"
# No helper container is to be pulled, and the port is that of this machine, in a container itself perhaps.
export TESTCONTAINERS_RYUK_DISABLED=true TESTCONTAINERS_CONNECTION_MODE=docker_host AIOPGQ_TEST_IMAGE=$image
"$python" -m pytest -q --pg=container tests/stories/test_outcomes.py tests/migrations/test_schema_dump.py "$@"
