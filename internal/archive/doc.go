// Package archive keeps a cluster's WAL and base backups in an object store, and gives them back.
//
// What it writes is readable without Kumki, by zstd, age, tar and PostgreSQL's own tools. Below the prefix of the destination:
//
//	<cluster>-<system identifier>/base/<id>/base.NNN.tar.zst[.age]              files of the data directory, each part a whole tar
//	<cluster>-<system identifier>/base/<id>/<tablespace oid>.NNN.tar.zst[.age]  files of a tablespace
//	<cluster>-<system identifier>/base/<id>/backup_manifest[.age]               PostgreSQL's manifest
//	<cluster>-<system identifier>/base/<id>/backup.json                         written last: the backup counts from then on
//	<cluster>-<system identifier>/wal/<timeline>/<segment>.zst[.age]            and <timeline>.history, <segment>.<offset>.backup
//
// Objects are written once. Whoever writes one that is there already compares checksums of the plain content: the same is success,
// another is an error, and what is there is never changed.
package archive
