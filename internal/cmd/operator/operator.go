// Package operator is the subcommand that runs the operator.
package operator

import "github.com/spf13/cobra"

// New returns the subcommand operator.
func New() *cobra.Command {
	return &cobra.Command{Use: "operator", Short: "Run the operator", Args: cobra.NoArgs}
}
