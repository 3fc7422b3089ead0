// Command localkube runs a real Kubernetes cluster of several nodes on one Linux machine, without a
// container engine or a registry. See docs/design/localkube.md.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/kumki-dev/kumki/hack/localkube/internal/cluster"
	"github.com/kumki-dev/kumki/hack/localkube/internal/host"
	"github.com/kumki-dev/kumki/hack/localkube/internal/layout"
)

var started = time.Now()

// logf prints progress. It goes to stderr: stdout is for what a caller wants to use.
func logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "[%5.1fs] %s\n", time.Since(started).Seconds(), fmt.Sprintf(format, args...))
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{
		Use:           "localkube",
		Short:         "A real Kubernetes cluster of several nodes on one Linux machine",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(upCommand(), downCommand(), statusCommand(), kubeconfigCommand(), envtestCommand(),
		loadCommand(), imagesCommand(), operatorImageCommand(), faultCommand(), launchCommand(), storageCommand())
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "localkube:", err)
		os.Exit(1)
	}
}

func upCommand() *cobra.Command {
	nodes := 3
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Bring the cluster up; building what the cache lacks takes up to 20 minutes",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cluster.New(logf).Up(cmd.Context(), nodes); err != nil {
				return err
			}
			fmt.Println("export KUBECONFIG=" + layout.Kubeconfig())
			return nil
		},
	}
	cmd.Flags().IntVar(&nodes, "nodes", nodes, "number of nodes")
	return cmd
}

func downCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Remove the cluster and everything it left on the machine, except the cache",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cluster.New(logf).Down(cmd.Context()) },
	}
}

func statusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show what runs; the exit code is 0 if all is well",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cluster.New(logf).Status(cmd.Context(), os.Stdout) },
	}
}

func kubeconfigCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print the path of the administrator's kubeconfig",
		Args:  cobra.NoArgs,
		Run:   func(*cobra.Command, []string) { fmt.Println(layout.Kubeconfig()) },
	}
}

// launchCommand is for our own use: see host.Launch.
func launchCommand() *cobra.Command {
	var spec host.LaunchSpec
	cmd := &cobra.Command{
		Use:    "launch -- PROGRAM [ARGUMENT...]",
		Hidden: true,
		Args:   cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			spec.Argv = args
			return host.Launch(spec)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&spec.Cgroup, "cgroup", "", "cgroup to join")
	flags.StringVar(&spec.NetNS, "netns", "", "network namespace to enter")
	flags.BoolVar(&spec.PrivateMounts, "private-mounts", false, "make a mount namespace")
	flags.StringArrayVar(&spec.Binds, "bind", nil, "source:target to bind in it")
	flags.IntVar(&spec.MountsOf, "mounts-of", 0, "pid whose mount namespace to enter")
	return cmd
}
