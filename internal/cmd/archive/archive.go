// Package archive is the command kumki-archive: WAL, base backups and restores of one cluster.
package archive

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"filippo.io/age"
	"github.com/spf13/cobra"

	"github.com/kumki-dev/kumki/internal/archive"
)

// New returns the command.
func New() *cobra.Command {
	root := &cobra.Command{
		Use: "kumki-archive", Short: "Archive WAL, take base backups, and restore them",
		SilenceUsage: true, SilenceErrors: true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	c := &common{}
	root.PersistentFlags().StringVar(&c.config, "config", "", "JSON file that says where the archive is (required)")
	root.AddCommand(c.checkCommand(), c.serveCommand(), c.backupCommand(), c.listCommand(), c.restoreCommand(), c.pruneCommand())
	return root
}

// Config says where the archive of a cluster is, and how it is written. Secrets are in files of their own.
type Config struct {
	// Cluster is the name that is archived under.
	Cluster string `json:"cluster"`
	// SystemIdentifier of the database, as pg_controldata prints it. Empty, for reading: the only one that was archived under that name.
	SystemIdentifier string `json:"systemIdentifier,omitempty"`
	// Destination, Endpoint and Region as in spec.backup.
	Destination string `json:"destination"`
	Endpoint    string `json:"endpoint,omitempty"`
	Region      string `json:"region,omitempty"`
	// CAFile has the certificates (PEM) that sign the server's.
	CAFile string `json:"caFile,omitempty"`
	// CredentialsDir is where the Secret with the credentials is mounted; empty: workload identity.
	CredentialsDir string `json:"credentialsDir,omitempty"`
	// UploadRateLimit in bytes a second; 0: none.
	UploadRateLimit int64 `json:"uploadRateLimit,omitempty"`
	// CompressionLevel of zstd, 1 to 19; 0: 3.
	CompressionLevel int `json:"compressionLevel,omitempty"`
	// Recipients of age who can decrypt; none: no encryption.
	Recipients []string `json:"recipients,omitempty"`
	// IdentityFile has the identities of age to decrypt with; only a restore needs it.
	IdentityFile string `json:"identityFile,omitempty"`
}

// common is what all subcommands stand on.
type common struct{ config string }

// session is an open archive.
type session struct {
	cfg   Config
	store archive.Store
	codec archive.Codec
	keys  archive.Keys
}

func (s *session) wal() *archive.WALArchive {
	return &archive.WALArchive{Store: s.store, Codec: &s.codec, Keys: s.keys}
}

// open reads the configuration and opens the store. The caller closes the store.
func (c *common) open(ctx context.Context) (*session, error) {
	if c.config == "" {
		return nil, errors.New("--config is required: the JSON file that says where the archive is")
	}
	raw, err := os.ReadFile(c.config)
	if err != nil {
		return nil, err
	}
	s := &session{}
	decoder := json.NewDecoder(strings.NewReader(string(raw)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&s.cfg); err != nil {
		return nil, fmt.Errorf("%s: %w", c.config, err)
	}
	if s.cfg.Cluster == "" {
		return nil, fmt.Errorf("%s: cluster is missing", c.config)
	}
	d, err := s.cfg.destination()
	if err != nil {
		return nil, err
	}
	if s.codec, err = s.cfg.codec(); err != nil {
		return nil, err
	}
	if s.store, err = archive.Open(ctx, d); err != nil {
		return nil, err
	}
	if s.keys, err = s.findKeys(ctx); err != nil {
		return nil, errors.Join(err, s.store.Close())
	}
	return s, nil
}

func (c *Config) destination() (archive.Destination, error) {
	d := archive.Destination{URL: c.Destination, Endpoint: c.Endpoint, Region: c.Region, UploadRateLimit: c.UploadRateLimit}
	var err error
	if c.CAFile != "" {
		if d.CA, err = os.ReadFile(c.CAFile); err != nil {
			return d, fmt.Errorf("caFile: %w", err)
		}
	}
	if c.CredentialsDir != "" {
		if d.Credentials, err = archive.ReadCredentials(c.CredentialsDir); err != nil {
			return d, fmt.Errorf("credentialsDir: %w", err)
		}
	}
	return d, d.Validate()
}

func (c *Config) codec() (archive.Codec, error) {
	codec := archive.Codec{Level: c.CompressionLevel}
	for i, text := range c.Recipients {
		r, err := age.ParseRecipients(strings.NewReader(text))
		if err != nil {
			return codec, fmt.Errorf("recipients[%d] %q is not a recipient of age: %w", i, text, err)
		}
		codec.Recipients = append(codec.Recipients, r...)
	}
	if c.IdentityFile == "" {
		return codec, nil
	}
	f, err := os.Open(c.IdentityFile)
	if err != nil {
		return codec, fmt.Errorf("identityFile: %w", err)
	}
	defer func() { _ = f.Close() }()
	if codec.Identities, err = age.ParseIdentities(f); err != nil {
		return codec, fmt.Errorf("identityFile %s has no identity of age", c.IdentityFile) // the error may quote a line of it
	}
	return codec, nil
}

// findKeys finds the cluster's folder in the archive.
func (s *session) findKeys(ctx context.Context) (archive.Keys, error) {
	keys := archive.Keys{Cluster: s.cfg.Cluster}
	if s.cfg.SystemIdentifier != "" {
		n, err := strconv.ParseUint(s.cfg.SystemIdentifier, 10, 64)
		if err != nil {
			return keys, fmt.Errorf("systemIdentifier %q is not a number: take it from pg_controldata", s.cfg.SystemIdentifier)
		}
		keys.SystemIdentifier = n
		return keys, nil
	}
	found, err := folders(ctx, s.store, s.cfg.Cluster)
	switch {
	case err != nil:
		return keys, err
	case len(found) == 0:
		return keys, fmt.Errorf("nothing is archived under the name %q in %s", s.cfg.Cluster, s.cfg.Destination)
	case len(found) > 1:
		return keys, fmt.Errorf("several databases were archived under the name %q: set systemIdentifier to one of %v", s.cfg.Cluster, found)
	}
	keys.SystemIdentifier = found[0]
	return keys, nil
}

// folders are the system identifiers that were archived under a cluster's name. Of each folder only the first object is listed.
func folders(ctx context.Context, store archive.Store, cluster string) ([]uint64, error) {
	var found []uint64
	last := ""
	for o, err := range store.List(ctx, cluster+"-") {
		if err != nil {
			return nil, fmt.Errorf("look for what was archived: %w", err)
		}
		folder, _, _ := strings.Cut(o.Key, "/")
		if folder == last {
			continue
		}
		last = folder
		if k, err := archive.ParseKeys(folder); err == nil && k.Cluster == cluster {
			found = append(found, k.SystemIdentifier)
		}
	}
	return found, nil
}

// run opens the archive, runs do and closes it.
func (c *common) run(cmd *cobra.Command, do func(ctx context.Context, s *session, out io.Writer) error) error {
	s, err := c.open(cmd.Context())
	if err != nil {
		return err
	}
	return errors.Join(do(cmd.Context(), s, cmd.OutOrStdout()), s.store.Close())
}

// say writes a line of JSON: progress and results are for the program that started this one.
func say(out io.Writer, v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = out.Write(append(line, '\n'))
	return err
}

func (c *common) checkCommand() *cobra.Command {
	return &cobra.Command{
		Use: "check", Short: "Prove that the archive can be written, and only once, and read", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.run(cmd, func(ctx context.Context, s *session, out io.Writer) error {
				if err := archive.Check(ctx, s.store); err != nil {
					_ = say(out, map[string]string{"problem": string(archive.Diagnose(err)), "message": err.Error()})
					return err
				}
				return say(out, map[string]string{"destination": s.cfg.Destination, "folder": s.keys.Dir()})
			})
		},
	}
}
