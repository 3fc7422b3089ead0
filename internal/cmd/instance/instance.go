// Package instance is the subcommand that runs a database pod.
package instance

import "github.com/spf13/cobra"

// New returns the subcommand instance.
func New() *cobra.Command {
	return &cobra.Command{Use: "instance", Short: "Run PostgreSQL in a database pod, as its first process", Args: cobra.NoArgs}
}
