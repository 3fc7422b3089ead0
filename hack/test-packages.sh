#!/usr/bin/env bash
# Installs what "make test" needs from Debian, where it is missing: PostgreSQL 15, whose programs the tests of processes run.
# The package's own database cluster is neither made nor started. (etcd is seen to by hack/localkube.)
set -euo pipefail

[ -x /usr/lib/postgresql/15/bin/postgres ] && exit 0
if ! command -v apt-get >/dev/null; then
	echo "PostgreSQL 15 is missing at /usr/lib/postgresql/15/bin and this is not Debian: install it there" >&2
	exit 1
fi
if [ "$(id -u)" != 0 ]; then
	echo "Debian's package postgresql-15 is missing: run as root, or: apt-get install postgresql-15" >&2
	exit 1
fi

echo "installing Debian's postgresql-15"
export DEBIAN_FRONTEND=noninteractive
install() { apt-get -qq -o DPkg::Lock::Timeout=120 install -y --no-install-recommends "$@" >/dev/null; }
apt-cache show postgresql-15 >/dev/null 2>&1 || apt-get -qq update
if ! dpkg-query -W postgresql-common >/dev/null 2>&1; then
	install postgresql-common || { apt-get -qq update && install postgresql-common; }
	mkdir -p /etc/postgresql-common/createcluster.d
	echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.d/kumki-tests.conf
fi
install postgresql-15 || { apt-get -qq update && install postgresql-15; }
