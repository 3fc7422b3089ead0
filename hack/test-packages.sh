#!/usr/bin/env bash
# Installs what "make test" needs from Debian, where it is missing: PostgreSQL 15, whose programs the tests of processes run, zstd, by
# which backups have to be readable, and pgrep (procps).
# The package's own database cluster is neither made nor started. (etcd is seen to by hack/localkube.)
set -euo pipefail

[ -x /usr/lib/postgresql/15/bin/postgres ] && command -v zstd >/dev/null && command -v pgrep >/dev/null && exit 0
if ! command -v apt-get >/dev/null; then
	echo "PostgreSQL 15 at /usr/lib/postgresql/15/bin, zstd or pgrep is missing and this is not Debian: install them" >&2
	exit 1
fi
if [ "$(id -u)" != 0 ]; then
	echo "Debian's package postgresql-15, zstd or procps is missing: run as root, or: apt-get install postgresql-15 zstd procps" >&2
	exit 1
fi

echo "installing Debian's postgresql-15, zstd and procps"
export DEBIAN_FRONTEND=noninteractive
install() { apt-get -qq -o DPkg::Lock::Timeout=120 install -y --no-install-recommends "$@" >/dev/null; }
apt-cache show postgresql-15 >/dev/null 2>&1 || apt-get -qq update
if ! dpkg-query -W postgresql-common >/dev/null 2>&1; then
	install postgresql-common || { apt-get -qq update && install postgresql-common; }
	mkdir -p /etc/postgresql-common/createcluster.d
	echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.d/kumki-tests.conf
fi
install postgresql-15 zstd procps || { apt-get -qq update && install postgresql-15 zstd procps; }
