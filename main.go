// Command kumki is the PostgreSQL operator, and the manager of its database pods.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/kumki-dev/kumki/internal/cmd/install"
	"github.com/kumki-dev/kumki/internal/cmd/instance"
	"github.com/kumki-dev/kumki/internal/cmd/operator"
)

func main() {
	root := &cobra.Command{
		Use:           "kumki",
		Short:         "Kumki runs PostgreSQL on Kubernetes",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(operator.New(), instance.New(), install.New())
	if err := root.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "kumki:", err)
		os.Exit(1)
	}
}
