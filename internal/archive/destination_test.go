package archive

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
)

func TestDestinationsThatAreRefused(t *testing.T) {
	s3Keys := map[string]string{CredentialS3AccessKey: "a", CredentialS3SecretKey: "top-secret"}
	tests := map[string]struct {
		d    Destination
		want []string
	}{
		"no URL":               {Destination{URL: "bucket"}, []string{"spec.backup.destination", `"bucket"`, "s3://bucket/prefix"}},
		"unknown scheme":       {Destination{URL: "ftp://x/y"}, []string{`"ftp"`}},
		"no bucket":            {Destination{URL: "s3:///x"}, []string{"not a bucket's name"}},
		"credentials in URL":   {Destination{URL: "s3://me:top-secret@bucket/x"}, []string{"do not belong into the URL", "s3://bucket/x"}},
		"parameters in URL":    {Destination{URL: "s3://bucket/x?region=a"}, []string{"parameters"}},
		"path that climbs":     {Destination{URL: "file:///a/../b"}, []string{`".."`}},
		"file with a host":     {Destination{URL: "file://backup/x"}, []string{"three slashes"}},
		"the root":             {Destination{URL: "file:///"}, []string{"three slashes"}},
		"endpoint of a file":   {Destination{URL: "file:///x", Endpoint: "https://a"}, []string{"spec.backup.endpoint", "remove"}},
		"endpoint of no sort":  {Destination{URL: "s3://bucket", Endpoint: "minio:9000"}, []string{"spec.backup.endpoint", "https://"}},
		"secret in endpoint":   {Destination{URL: "s3://bucket", Endpoint: "https://me:top-secret@a"}, []string{"do not belong into the URL"}},
		"region of gs":         {Destination{URL: "gs://bucket", Region: "x"}, []string{"spec.backup.region", "remove"}},
		"region":               {Destination{URL: "s3://bucket", Region: "Frankfurt am Main"}, []string{"eu-central-1"}},
		"CA":                   {Destination{URL: "s3://bucket", CA: []byte("x")}, []string{"spec.backup.ca", "BEGIN CERTIFICATE"}},
		"unknown key":          {Destination{URL: "s3://bucket", Credentials: map[string]string{"user": "top-secret"}}, []string{`"user"`, CredentialS3AccessKey}},
		"half of a credential": {Destination{URL: "s3://bucket", Credentials: map[string]string{CredentialS3AccessKey: "a"}}, []string{CredentialS3SecretKey}},
		"azure account":        {Destination{URL: "azblob://container"}, []string{CredentialAzureAccount}},
		"rate":                 {Destination{URL: "s3://bucket", Credentials: s3Keys, UploadRateLimit: 5}, []string{"spec.backup.uploadRateLimit 5"}},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			err := c.d.Validate()
			g.Expect(err).To(HaveOccurred())
			for _, want := range c.want {
				g.Expect(err.Error()).To(ContainSubstring(want))
			}
			g.Expect(err.Error()).NotTo(ContainSubstring("top-secret"))
		})
	}
}

func TestDestinationsThatAreGood(t *testing.T) {
	g := NewWithT(t)
	for _, d := range []Destination{
		{URL: "s3://bucket"},
		{URL: "s3://bucket/a/b/", Region: "eu-central-1", Endpoint: "https://s3.example.com:9000"},
		{URL: "gs://bucket/x"},
		{URL: "azblob://container/x", Credentials: map[string]string{CredentialAzureAccount: "a"}},
		{URL: "file:///backup/x", UploadRateLimit: MinUploadRate},
	} {
		g.Expect(d.Validate()).To(Succeed(), d.URL)
	}
}

func TestDestinationPrintsNoSecret(t *testing.T) {
	d := Destination{URL: "s3://bucket", Credentials: map[string]string{CredentialS3SecretKey: "top-secret"}}
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		for _, value := range []any{d, &d, struct{ D Destination }{d}} {
			NewWithT(t).Expect(fmt.Sprintf(format, value)).NotTo(ContainSubstring("top-secret"), format)
		}
	}
}

func TestReadCredentials(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	// As the kubelet does it: the keys are links into a directory that is replaced.
	g.Expect(os.Mkdir(filepath.Join(dir, "..data"), 0o755)).To(Succeed())
	g.Expect(os.WriteFile(filepath.Join(dir, "..data", CredentialS3AccessKey), []byte("key\n"), 0o600)).To(Succeed())
	g.Expect(os.Symlink(filepath.Join("..data", CredentialS3AccessKey), filepath.Join(dir, CredentialS3AccessKey))).To(Succeed())
	g.Expect(ReadCredentials(dir)).To(Equal(map[string]string{CredentialS3AccessKey: "key"}))
}
