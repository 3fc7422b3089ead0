// Package proctree finds and kills the processes of a PostgreSQL server by /proc. The guard process links it, so it stays small.
package proctree
