package manifests

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

const root = "../../"

var (
	proof = regexp.MustCompile("`([^`]+_test\\.go): ([^`]+)`")
	link  = regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
)

func TestEveryCapabilityIsProvenByATestThatExists(t *testing.T) {
	g := NewWithT(t)
	text, err := os.ReadFile(root + "docs/capability-levels.md")
	g.Expect(err).NotTo(HaveOccurred())
	for _, row := range strings.Split(string(text), "\n") {
		proofs := proof.FindAllStringSubmatch(row, -1)
		if strings.Contains(row, "| yes |") {
			g.Expect(proofs).NotTo(BeEmpty(), "no test proves: %s", row)
		}
		for _, p := range proofs {
			code, err := os.ReadFile(root + p[1])
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(string(code)).To(ContainSubstring(p[2]), "%s has no such test", p[1])
		}
	}
}

func TestLinksBetweenDocumentsLeadSomewhere(t *testing.T) {
	g := NewWithT(t)
	files, err := filepath.Glob(root + "*.md")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(filepath.WalkDir(root+"docs", func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".md") {
			files = append(files, path)
		}
		return err
	})).To(Succeed())
	for _, file := range files {
		text, err := os.ReadFile(file)
		g.Expect(err).NotTo(HaveOccurred())
		for _, l := range link.FindAllStringSubmatch(string(text), -1) {
			g.Expect(filepath.Join(filepath.Dir(file), l[1])).To(Or(BeAnExistingFile(), BeADirectory()), "link in %s", file)
		}
	}
}
