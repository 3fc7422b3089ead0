package ha

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

var (
	client    kubernetes.Interface
	apiServer *envtest.Environment
	// adminKubeconfig is the base of the instances' own ones.
	adminKubeconfig []byte
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
	admin, err := apiServer.AddUser(envtest.User{Name: "admin", Groups: []string{"system:masters"}}, nil)
	Expect(err).NotTo(HaveOccurred())
	adminKubeconfig, err = admin.KubeConfig()
	Expect(err).NotTo(HaveOccurred())
	ctx := context.Background()
	_, err = client.CoreV1().ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: serviceAccount}}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	_, err = client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: serviceAccount},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: serviceAccount}},
	}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
})
