package ha

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

var (
	client     kubernetes.Interface
	kubeconfig string
	apiServer  *envtest.Environment
)

func TestHA(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "high availability of processes")
}

var _ = BeforeSuite(func() {
	dir, err := os.MkdirTemp("", "kumki-ha-bin-")
	Expect(err).NotTo(HaveOccurred())
	Expect(os.Chmod(dir, 0o755)).To(Succeed())
	DeferCleanup(os.RemoveAll, dir)
	kumki, guardBinary = filepath.Join(dir, "kumki"), filepath.Join(dir, "kumki-wal")
	for out, pkg := range map[string]string{kumki: "../..", guardBinary: "../../cmd/kumki-wal"} {
		build := exec.Command("go", "build", "-o", out, pkg)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		log, err := build.CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), string(log))
	}
	apiServer = &envtest.Environment{}
	cfg, err := apiServer.Start()
	Expect(err).NotTo(HaveOccurred(), "the API server starts; KUBEBUILDER_ASSETS must name its directory")
	DeferCleanup(apiServer.Stop)
	client = kubernetes.NewForConfigOrDie(rest.CopyConfig(cfg))
	admin, err := apiServer.AddUser(envtest.User{Name: "instances", Groups: []string{"system:masters"}}, nil)
	Expect(err).NotTo(HaveOccurred())
	raw, err := admin.KubeConfig()
	Expect(err).NotTo(HaveOccurred())
	kubeconfig = filepath.Join(dir, "kubeconfig")
	Expect(os.WriteFile(kubeconfig, raw, 0o644)).To(Succeed())
})
