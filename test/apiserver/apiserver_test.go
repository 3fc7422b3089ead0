// Package apiserver tests what only an API server can tell: that the schema refuses and defaults as it should, that the objects of a
// cluster are taken, and that a database pod may do what it has to and nothing else.
package apiserver

import (
	"context"
	"fmt"
	"os"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
)

// server is the API server that all tests of this package share, with the CustomResourceDefinitions installed.
var server struct {
	config *rest.Config
	client client.Client
}

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	env := &envtest.Environment{CRDDirectoryPaths: []string{"../../config/crd/bases"}, ErrorIfCRDPathMissing: true}
	// With RBAC, as in every real cluster; the tests of roles need it.
	env.ControlPlane.GetAPIServer().Configure().Set("authorization-mode", "RBAC")
	config, err := env.Start()
	if err != nil {
		return 0, fmt.Errorf("start an API server (is KUBEBUILDER_ASSETS set? make test does it): %w", err)
	}
	defer func() { _ = env.Stop() }()
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return 0, err
	}
	if err := apiv1.AddToScheme(scheme); err != nil {
		return 0, err
	}
	server.config = config
	if server.client, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

// remove deletes an object when the test ends.
func remove(t *testing.T, o client.Object) {
	t.Helper()
	t.Cleanup(func() {
		if err := client.IgnoreNotFound(server.client.Delete(context.Background(), o)); err != nil {
			t.Error(err)
		}
	})
}
