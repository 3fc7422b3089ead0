package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kumki-dev/kumki/hack/localkube/internal/artifact"
	"github.com/kumki-dev/kumki/hack/localkube/internal/cluster"
	"github.com/kumki-dev/kumki/hack/localkube/internal/image"
	"github.com/kumki-dev/kumki/hack/localkube/internal/storage"
)

func envtestCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "envtest",
		Short: "Build kube-apiserver if the cache lacks it; print the directory for KUBEBUILDER_ASSETS",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := artifact.EnvtestAssets(cmd.Context(), logf)
			if err != nil {
				return err
			}
			fmt.Println(dir)
			return nil
		},
	}
}

func loadCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "load IMAGE.tar|postgres:NN...",
		Short: "Load images into every node",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, arg := range args {
				path := arg
				if _, err := os.Stat(path); err != nil {
					if path, err = postgresTar(cmd.Context(), arg); err != nil {
						return fmt.Errorf("%s is neither a file nor an image that we build: %w", arg, err)
					}
				}
				if err := load(cmd.Context(), arg, path); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func imagesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "images [postgres:15 postgres:17 postgres:18]",
		Short: "Build PostgreSQL images if the cache lacks them, and load them into the nodes if a cluster is up",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				args = []string{"postgres:15", "postgres:17", "postgres:18"}
			}
			for _, arg := range args {
				path, err := postgresTar(cmd.Context(), arg)
				if err != nil {
					return err
				}
				if err := loadIfUp(cmd.Context(), arg, path); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func postgresTar(ctx context.Context, name string) (string, error) {
	major, err := image.PostgresMajor(name)
	if err != nil {
		return "", err
	}
	return image.Postgres(ctx, logf, major)
}

func operatorImageCommand() *cobra.Command {
	tag, version := "dev", "dev"
	cmd := &cobra.Command{
		Use:   "operator-image",
		Short: "Build the operator's image from this checkout, and load it into the nodes if a cluster is up",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			repo, err := image.RepoRoot()
			if err != nil {
				return err
			}
			logf("building %s from %s", image.OperatorRef(tag), repo)
			path, err := image.Operator(cmd.Context(), logf, repo, tag, version)
			if err != nil {
				return err
			}
			if err := loadIfUp(cmd.Context(), image.OperatorRef(tag), path); err != nil {
				return err
			}
			fmt.Println(path)
			return nil
		},
	}
	cmd.Flags().StringVar(&tag, "tag", tag, "tag of the image")
	cmd.Flags().StringVar(&version, "version", version, "version that the programs report")
	return cmd
}

func loadIfUp(ctx context.Context, name, path string) error {
	if len(cluster.RecordedNodes()) == 0 {
		logf("%s is at %s; no cluster is up to load it into", name, path)
		return nil
	}
	return load(ctx, name, path)
}

func load(ctx context.Context, name, path string) error {
	nodes := cluster.RecordedNodes()
	logf("loading %s into %d nodes", name, len(nodes))
	if err := image.Load(ctx, path, nodes); err != nil {
		return err
	}
	logf("%s is loaded", name)
	return nil
}

// storageCommand is for our own use: "up" starts it as a daemon.
func storageCommand() *cobra.Command {
	var kubeconfig string
	cmd := &cobra.Command{
		Use:    "storage",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
			if err != nil {
				return err
			}
			client, err := kubernetes.NewForConfig(config)
			if err != nil {
				return err
			}
			return storage.Run(cmd.Context(), client)
		},
	}
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "path of a kubeconfig")
	return cmd
}
