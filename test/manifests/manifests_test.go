// Package manifests tests what is installed: the files below config/, against the API server that runs them.
package manifests

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
)

const config = "../../config/"

// samples are the files that config/samples/kustomization.yaml lists.
func samples(t *testing.T) []string {
	t.Helper()
	g := NewWithT(t)
	var kustomization struct {
		Resources []string `json:"resources"`
	}
	read(t, config+"samples/kustomization.yaml", &kustomization)
	files, err := filepath.Glob(config + "samples/databases_*.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(kustomization.Resources).To(HaveLen(len(files)), "config/samples/kustomization.yaml must list every sample")
	return files
}

func read(t *testing.T, file string, into any) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(data, into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

func TestTheAPIServerTakesEverySampleWithoutAWarning(t *testing.T) {
	g := NewWithT(t)
	environment := &envtest.Environment{CRDDirectoryPaths: []string{config + "crd/bases"}, ErrorIfCRDPathMissing: true}
	rest, err := environment.Start()
	g.Expect(err).NotTo(HaveOccurred(), "the API server does not start: is KUBEBUILDER_ASSETS set? 'make test' does it")
	t.Cleanup(func() { _ = environment.Stop() })

	warnings := &warningsSeen{}
	rest.WarningHandler = warnings
	c, err := client.New(rest, client.Options{FieldValidation: metav1.FieldValidationStrict})
	g.Expect(err).NotTo(HaveOccurred())

	for _, file := range samples(t) {
		sample := &unstructured.Unstructured{}
		read(t, file, &sample.Object)
		sample.SetNamespace("default")
		g.Expect(c.Create(t.Context(), sample)).To(Succeed(), file)
	}
	g.Expect(warnings.text).To(BeEmpty())
}

// warningsSeen collects the API server's warnings.
type warningsSeen struct{ text []string }

// HandleWarningHeader implements rest.WarningHandler.
func (w *warningsSeen) HandleWarningHeader(_ int, _ string, text string) {
	w.text = append(w.text, text)
}

func TestTheOperatorIsRestricted(t *testing.T) {
	g := NewWithT(t)
	var deployment appsv1.Deployment
	read(t, config+"manager/manager.yaml", &deployment)
	g.Expect(deployment.Spec.Strategy.Type).To(Equal(appsv1.RecreateDeploymentStrategyType), "two operators must never run at once")

	pod := deployment.Spec.Template.Spec
	g.Expect(pod.SecurityContext.RunAsNonRoot).To(HaveValue(BeTrue()))
	g.Expect(pod.SecurityContext.RunAsUser).To(BeNil(), "any user must do, OpenShift chooses one")
	g.Expect(pod.SecurityContext.SeccompProfile.Type).To(BeEquivalentTo("RuntimeDefault"))
	for _, container := range pod.Containers {
		g.Expect(container.SecurityContext.ReadOnlyRootFilesystem).To(HaveValue(BeTrue()))
		g.Expect(container.SecurityContext.AllowPrivilegeEscalation).To(HaveValue(BeFalse()))
		g.Expect(container.SecurityContext.Capabilities.Drop).To(ConsistOf(BeEquivalentTo("ALL")))
		g.Expect(container.Resources.Requests).To(And(HaveKey(BeEquivalentTo("cpu")), HaveKey(BeEquivalentTo("memory"))))
	}
}

func TestTheOperatorKnowsAnImageOfEveryVersion(t *testing.T) {
	g := NewWithT(t)
	var deployment appsv1.Deployment
	read(t, config+"manager/manager.yaml", &deployment)
	container := deployment.Spec.Template.Spec.Containers[0]
	env := map[string]string{}
	for _, v := range container.Env {
		env[v.Name] = v.Value
	}
	g.Expect(env).To(HaveKeyWithValue("KUMKI_IMAGE", container.Image), "database pods run the binaries of the operator's image")
	for _, version := range []string{"15", "16", "17", "18"} {
		g.Expect(env["RELATED_IMAGE_POSTGRES_"+version]).To(HaveSuffix(":" + version))
	}
}

// What the CustomResourceDefinition says is checked here, too, for people who read it with kubectl explain.
func TestEveryFieldOfOursIsDescribed(t *testing.T) {
	g := NewWithT(t)
	files, err := filepath.Glob(config + "crd/bases/*.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(files).NotTo(BeEmpty())
	for _, file := range files {
		var crd struct {
			Spec struct {
				Versions []struct {
					Schema struct {
						OpenAPI property `json:"openAPIV3Schema"`
					} `json:"schema"`
				} `json:"versions"`
			} `json:"spec"`
		}
		read(t, file, &crd)
		for _, version := range crd.Spec.Versions {
			var missing []string
			version.Schema.OpenAPI.undescribed("", &missing)
			g.Expect(missing).To(BeEmpty(), "%s: give these fields a comment in api/v1", file)
		}
	}
}

type property struct {
	Description string              `json:"description"`
	Properties  map[string]property `json:"properties"`
	Items       *property           `json:"items"`
}

// undescribed adds the paths of fields without a description. Kubernetes' own types are not ours to describe.
func (p property) undescribed(path string, missing *[]string) {
	for name, child := range p.Properties {
		at := strings.TrimPrefix(path+"."+name, ".")
		if at == "metadata" || at == "spec.affinity" {
			continue
		}
		if child.Description == "" {
			*missing = append(*missing, at)
		}
		child.undescribed(at, missing)
	}
	if p.Items != nil {
		p.Items.undescribed(path, missing)
	}
}

// Both lists of what the operator may do are written by hand or generated; neither may hold a wildcard.
func TestNoRoleHasAWildcard(t *testing.T) {
	g := NewWithT(t)
	files, err := filepath.Glob(config + "rbac/*.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	for _, file := range files {
		data, err := os.ReadFile(file)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(bytes.Contains(data, []byte("- '*'"))).To(BeFalse(), file)
		g.Expect(bytes.Contains(data, []byte(`"*"`))).To(BeFalse(), file)
	}
}

func TestPROJECTNamesEveryKind(t *testing.T) {
	g := NewWithT(t)
	var project struct {
		Resources []struct {
			Group, Domain, Kind, Version string
		} `json:"resources"`
	}
	read(t, "../../PROJECT", &project)
	var kinds []string
	for _, r := range project.Resources {
		g.Expect(r.Group + "." + r.Domain).To(Equal(apiv1.GroupVersion.Group))
		g.Expect(r.Version).To(Equal(apiv1.GroupVersion.Version))
		kinds = append(kinds, r.Kind)
	}
	scheme := runtime.NewScheme()
	g.Expect(apiv1.AddToScheme(scheme)).To(Succeed())
	for kind, typ := range scheme.KnownTypes(apiv1.GroupVersion) {
		if typ.PkgPath() != "github.com/kumki-dev/kumki/api/v1" || strings.HasSuffix(kind, "List") {
			continue
		}
		g.Expect(kinds).To(ContainElement(kind))
	}
}
