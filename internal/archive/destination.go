package archive

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Provider of an object store, by the scheme of its URL.
type Provider string

// Providers that Open knows.
const (
	S3        Provider = "s3"
	GCS       Provider = "gs"
	AzureBlob Provider = "azblob"
	File      Provider = "file"
)

// Keys of the credentials' Secret. Without a Secret, the provider's own chain is asked: workload identity, instance roles.
const (
	// S3: both of the first two, and a token for temporary ones.
	CredentialS3AccessKey    = "accessKeyId"
	CredentialS3SecretKey    = "secretAccessKey"
	CredentialS3SessionToken = "sessionToken"
	// Google Cloud Storage: the JSON key of a service account.
	CredentialGCSKey = "serviceAccountKey"
	// Azure: the storage account, with its key or a shared access signature. The account alone: workload identity.
	CredentialAzureAccount = "storageAccount"
	CredentialAzureKey     = "storageKey"
	CredentialAzureSAS     = "sasToken"
)

var credentialKeys = map[Provider][]string{
	S3:        {CredentialS3AccessKey, CredentialS3SecretKey, CredentialS3SessionToken},
	GCS:       {CredentialGCSKey},
	AzureBlob: {CredentialAzureAccount, CredentialAzureKey, CredentialAzureSAS},
	File:      {},
}

// Destination is where a cluster's archive is. Its String has no secrets.
type Destination struct {
	// URL is s3://bucket/prefix, gs://bucket/prefix, azblob://container/prefix or file:///path/of/a/mounted/volume.
	URL string
	// Endpoint is the URL of a self-hosted server (s3: addressed by path), or of a provider's other domain. Empty: the provider's.
	Endpoint string
	// Region of the bucket; S3 alone. Empty: us-east-1, or what the environment says.
	Region string
	// CA are PEM certificates that sign the server's, in addition to the system's.
	CA []byte
	// Credentials by the keys above. Empty: the provider's own chain.
	Credentials map[string]string
	// UploadRateLimit in bytes a second, over all uploads of one Store. 0: none.
	UploadRateLimit int64
}

// String is the URL.
func (d Destination) String() string { return d.URL }

// GoString keeps the credentials out of %#v, as Format does for %+v.
func (d Destination) GoString() string { return fmt.Sprintf("archive.Destination{URL: %q}", d.URL) }

// Format keeps the credentials out of every verb.
func (d Destination) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(d.URL)) }

// location is a parsed URL.
type location struct {
	provider Provider
	// bucket, container, or directory.
	bucket string
	// prefix ends with "/" or is empty.
	prefix string
}

// Validate tells what is wrong with d: the field of spec.backup, its value and the way out. All problems are joined.
func (d Destination) Validate() error {
	at, err := d.locate()
	if err != nil {
		return err
	}
	return errors.Join(d.validateEndpoint(at), d.validateRegion(at), d.validateCA(at), d.validateCredentials(at), d.validateRate())
}

// Provider of d, by its URL alone.
func (d Destination) Provider() (Provider, error) {
	at, err := d.locate()
	return at.provider, err
}

const urlExamples = "write s3://bucket/prefix, gs://bucket/prefix, azblob://container/prefix or file:///path/of/a/mounted/volume"

var (
	// https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html; old buckets may have capitals and "_".
	bucketPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]$`)
	// https://learn.microsoft.com/en-us/rest/api/storageservices/naming-and-referencing-containers--blobs--and-metadata
	containerPattern = regexp.MustCompile(`^(\$root|\$web|[a-z0-9](-?[a-z0-9]){2,62})$`)
	regionPattern    = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)
)

func (d Destination) locate() (location, error) {
	bad := func(what string) (location, error) {
		return location{}, fmt.Errorf("spec.backup.destination %q: %s", withoutUser(d.URL), what)
	}
	u, err := url.Parse(d.URL)
	if err != nil || u.Scheme == "" {
		return bad("this is not a URL; " + urlExamples)
	}
	switch {
	case u.User != nil:
		return bad("credentials do not belong into the URL; put them into a Secret and name it in spec.backup.credentials")
	case u.RawQuery != "" || u.Fragment != "":
		return bad("parameters in the URL are not known; use the fields of spec.backup")
	case strings.Contains(u.Path, "//") || slices.ContainsFunc(strings.Split(u.Path, "/"), func(s string) bool { return s == "." || s == ".." }):
		return bad(`the path has an empty part, "." or ".."; leave them out`)
	}
	at := location{provider: Provider(u.Scheme), bucket: u.Host}
	if at.prefix = strings.Trim(u.Path, "/"); at.prefix != "" {
		at.prefix += "/"
	}
	switch at.provider {
	case S3, GCS:
		if !bucketPattern.MatchString(u.Host) {
			return bad(fmt.Sprintf("%q is not a bucket's name; %s", u.Host, urlExamples))
		}
	case AzureBlob:
		if !containerPattern.MatchString(u.Host) {
			return bad(fmt.Sprintf("%q is not a container's name; %s", u.Host, urlExamples))
		}
	case File:
		if u.Host != "" || path.Clean(u.Path) == "/" || u.Path == "" {
			return bad("this names no directory; write three slashes and the path of a mounted volume, as in file:///backup/postgres")
		}
		return location{provider: File, bucket: path.Clean(u.Path)}, nil
	default:
		return bad(fmt.Sprintf("the scheme %q is not known; %s", u.Scheme, urlExamples))
	}
	return at, nil
}

// withoutUser leaves out what stands before "@", since it may be a secret.
func withoutUser(s string) string {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		return s
	}
	if i := strings.LastIndex(rest, "@"); i >= 0 {
		rest = rest[i+1:]
	}
	return scheme + "://" + rest
}

func (d Destination) validateEndpoint(at location) error {
	if d.Endpoint == "" {
		return nil
	}
	bad := func(what string) error {
		return fmt.Errorf("spec.backup.endpoint %q: %s", withoutUser(d.Endpoint), what)
	}
	if at.provider == File {
		return bad("a file:// destination has no server; remove the field")
	}
	u, err := url.Parse(d.Endpoint)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return bad("this is not the URL of a server; write it as https://s3.example.com:9000")
	case u.User != nil:
		return bad("credentials do not belong into the URL; put them into a Secret and name it in spec.backup.credentials")
	case u.RawQuery != "" || u.Fragment != "":
		return bad("parameters in the URL are not known; remove them")
	}
	return nil
}

func (d Destination) validateRegion(at location) error {
	switch {
	case d.Region == "":
		return nil
	case at.provider != S3:
		return fmt.Errorf("spec.backup.region %q: only s3:// destinations have a region; remove the field", d.Region)
	case !regionPattern.MatchString(d.Region):
		return fmt.Errorf("spec.backup.region %q: this is not a region's name; write it as eu-central-1", d.Region)
	}
	return nil
}

func (d Destination) validateCA(at location) error {
	if len(d.CA) == 0 {
		return nil
	}
	if at.provider == File {
		return errors.New("spec.backup.ca: a file:// destination has no server; remove the field")
	}
	if !x509.NewCertPool().AppendCertsFromPEM(d.CA) {
		return fmt.Errorf("spec.backup.ca: no certificate in its %d bytes; it has to begin with -----BEGIN CERTIFICATE-----", len(d.CA))
	}
	return nil
}

func (d Destination) validateCredentials(at location) error {
	known := credentialKeys[at.provider]
	var errs []error
	for key := range d.Credentials {
		if !slices.Contains(known, key) {
			errs = append(errs, fmt.Errorf("spec.backup.credentials: the Secret's key %q is not known for %s:// destinations; known are %q", key, at.provider, known))
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	missing := func(key, why string) {
		errs = append(errs, fmt.Errorf("spec.backup.credentials: the Secret lacks the key %q: %s", key, why))
	}
	has := func(key string) bool { return d.Credentials[key] != "" }
	switch at.provider {
	case S3:
		if len(d.Credentials) > 0 && !has(CredentialS3AccessKey) {
			missing(CredentialS3AccessKey, "add it, or remove spec.backup.credentials to use the pod's identity")
		}
		if len(d.Credentials) > 0 && !has(CredentialS3SecretKey) {
			missing(CredentialS3SecretKey, "add it, or remove spec.backup.credentials to use the pod's identity")
		}
	case GCS:
		if len(d.Credentials) > 0 && !has(CredentialGCSKey) {
			missing(CredentialGCSKey, "add it, or remove spec.backup.credentials to use the pod's identity")
		}
	case AzureBlob:
		if !has(CredentialAzureAccount) && d.Endpoint == "" {
			missing(CredentialAzureAccount, "add it, since the container's server is named by it; alone it makes use of the pod's identity")
		}
		if has(CredentialAzureKey) && has(CredentialAzureSAS) {
			errs = append(errs, fmt.Errorf("spec.backup.credentials: the Secret has both %q and %q; remove one", CredentialAzureKey, CredentialAzureSAS))
		}
	}
	return errors.Join(errs...)
}

func (d Destination) validateRate() error {
	if d.UploadRateLimit < 0 || d.UploadRateLimit > 0 && d.UploadRateLimit < MinUploadRate {
		return fmt.Errorf("spec.backup.uploadRateLimit %d: WAL would never be archived in time; write %d (64 KiB/s) or more, or 0 for no limit",
			d.UploadRateLimit, MinUploadRate)
	}
	return nil
}

// MinUploadRate is the smallest UploadRateLimit, in bytes a second.
const MinUploadRate = 64 << 10

// ReadCredentials reads the files of a directory into which a Secret is mounted. One trailing line break is dropped, since editors add it.
func ReadCredentials(dir string) (map[string]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read the credentials of spec.backup.credentials: %w", err)
	}
	credentials := map[string]string{}
	for _, entry := range entries {
		// The kubelet keeps the Secret's generations in directories that begin with "..".
		if strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, fmt.Errorf("read the credentials of spec.backup.credentials: %w", err)
		}
		value := strings.TrimSuffix(strings.TrimSuffix(string(content), "\n"), "\r")
		credentials[entry.Name()] = value
	}
	return credentials, nil
}
