package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/kumki-dev/kumki/hack/localkube/internal/cluster"
	"github.com/kumki-dev/kumki/hack/localkube/internal/fault"
	"github.com/kumki-dev/kumki/hack/localkube/internal/layout"
)

func faultCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fault",
		Short: "Break the cluster, and heal it",
	}
	cmd.AddCommand(cutCommand(), healCommand(), freezeCommand("freeze", true), freezeCommand("thaw", false), killCommand(),
		&cobra.Command{
			Use:   "stop-api",
			Short: "Stop the API server",
			Args:  cobra.NoArgs,
			RunE:  func(cmd *cobra.Command, _ []string) error { return cluster.New(logf).StopAPI(cmd.Context()) },
		},
		&cobra.Command{
			Use:   "start-api",
			Short: "Start the API server again, on the same data",
			Args:  cobra.NoArgs,
			RunE:  func(cmd *cobra.Command, _ []string) error { return cluster.New(logf).StartAPI(cmd.Context()) },
		})
	return cmd
}

func cutCommand() *cobra.Command {
	var from []string
	cmd := &cobra.Command{
		Use:   "cut NODE",
		Short: "Cut a node off, from everything or from the API server (\"api\") or other nodes",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			node, err := layout.NodeByName(args[0])
			if err != nil {
				return err
			}
			return fault.Cut(cmd.Context(), node, from)
		},
	}
	cmd.Flags().StringSliceVar(&from, "from", nil, "what to cut it off from: api, node-2, ...")
	return cmd
}

func healCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "heal NODE...",
		Short: "Undo all cuts of nodes",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, arg := range args {
				node, err := layout.NodeByName(arg)
				if err != nil {
					return err
				}
				if err := fault.Heal(cmd.Context(), node); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// podFlags are what says which containers a fault hits.
type podFlags struct{ namespace, container string }

func (f *podFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.namespace, "namespace", "n", "default", "namespace of the pod")
	cmd.Flags().StringVarP(&f.container, "container", "c", "", "container of the pod (default: all)")
}

func (f *podFlags) find(pod string) ([]fault.Container, error) {
	return fault.Containers(cluster.RecordedNodes(), f.namespace, pod, f.container)
}

func freezeCommand(name string, frozen bool) *cobra.Command {
	var flags podFlags
	cmd := &cobra.Command{
		Use:   name + " POD",
		Short: strings.ToUpper(name[:1]) + name[1:] + " the processes of a pod",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			containers, err := flags.find(args[0])
			if err != nil {
				return err
			}
			for _, c := range containers {
				if err := c.SetFrozen(frozen); err != nil {
					return err
				}
				logf("%s: container %s on %s", name, c.Name, c.Node.Name())
			}
			return nil
		},
	}
	flags.register(cmd)
	return cmd
}

func killCommand() *cobra.Command {
	var flags podFlags
	role, signalName, all := fault.Postmaster, "KILL", false
	cmd := &cobra.Command{
		Use:   "kill POD",
		Short: "Send a signal to a process of a database pod",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			signal := unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(signalName), "SIG"))
			if signal == 0 {
				return fmt.Errorf("%q is no signal", signalName)
			}
			containers, err := flags.find(args[0])
			if err != nil {
				return err
			}
			hit := 0
			for _, c := range containers {
				pids, err := fault.FindProcesses(c, role)
				if err != nil {
					return err
				}
				for _, pid := range pids {
					if hit > 0 && !all {
						break
					}
					if err := unix.Kill(pid, signal); err != nil {
						return fmt.Errorf("signal %s (pid %d): %w", role, pid, err)
					}
					logf("sent %s to the %s of %s (container %s, pid %d)", signalName, role, args[0], c.Name, pid)
					hit++
				}
			}
			if hit == 0 {
				return fmt.Errorf("pod %s/%s has no %s", flags.namespace, args[0], role)
			}
			return nil
		},
	}
	flags.register(cmd)
	cmd.Flags().StringVar(&role, "process", role, "manager, postmaster, guard or backend")
	cmd.Flags().StringVar(&signalName, "signal", signalName, "KILL, STOP, CONT, ...")
	cmd.Flags().BoolVar(&all, "all", false, "hit all such processes, not only the first")
	return cmd
}
