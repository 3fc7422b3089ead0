package desired

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	corev1 "k8s.io/api/core/v1"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/instanceapi"
	"github.com/kumki-dev/kumki/internal/naming"
)

// Defaults of a new database, for a cluster without spec.bootstrap.initdb.
const (
	DefaultDatabase = "app"
	DefaultOwner    = "app"
	DefaultEncoding = "UTF8"
	DefaultLocale   = "C.UTF-8"
)

// Config is what the instances are told.
func Config(in Input) instanceapi.Config {
	spec := in.Cluster.Spec
	initdb, _, _ := initDB(in)
	return instanceapi.Config{
		Cluster:             in.Cluster.Name,
		Namespace:           in.Cluster.Namespace,
		SystemIdentifier:    in.SystemIdentifier,
		NoBootstrap:         in.NoBootstrap,
		MajorVersion:        in.MajorVersion,
		Members:             members(in),
		Parameters:          copyOf(in.Parameters),
		HBA:                 in.HBA,
		Durability:          string(spec.Replication.Durability),
		SynchronousStandbys: int(spec.Replication.SynchronousStandbys),
		MaxLagForReads:      spec.Replication.MaxLagForReads.Value(),
		MaxLagForPromotion:  spec.Replication.MaxLagForPromotion.Value(),
		InitDB:              initdb,
		SuperuserRemote:     spec.Superuser.RemoteAccess,
		SeparateWAL:         spec.Storage.WALStorage != nil,
		Suspend:             in.Suspend,
	}
}

// ConfigText is the content of the key naming.KeyConfig: Config as JSON, with the keys of maps sorted.
func ConfigText(in Input) []byte {
	text, err := json.MarshalIndent(Config(in), "", "  ")
	if err != nil {
		panic("desired: the instances' configuration is plain data and cannot fail to encode: " + err.Error())
	}
	return text
}

// ConfigHash is the SHA-256 (hex) of a content, as instances report it (instanceapi.Status.ConfigHash).
func ConfigHash(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// ConfigMap has what the instances are told.
func ConfigMap(in Input) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta:   typeMeta("v1", "ConfigMap"),
		ObjectMeta: meta(in, naming.ConfigMap(in.Cluster.Name)),
		Data:       map[string]string{naming.KeyConfig: string(ConfigText(in))},
	}
}

func members(in Input) []instanceapi.Member {
	all := make([]instanceapi.Member, in.Members)
	for i := range all {
		pod := naming.Pod(in.Cluster.Name, i)
		all[i] = instanceapi.Member{
			Name: pod, Host: naming.PodHost(in.Cluster.Name, in.Cluster.Namespace, pod),
			Port: naming.PortPostgreSQL, APIPort: naming.PortAPI,
		}
	}
	return all
}

// initDB is the declaration of the first database with its defaults, and the database's name and owner.
func initDB(in Input) (out instanceapi.InitDB, database, owner string) {
	declared := in.Cluster.Spec.Bootstrap.InitDB
	if declared == nil {
		declared = &apiv1.InitDBSpec{}
	}
	out = instanceapi.InitDB{
		Database:      or(declared.Database, DefaultDatabase),
		Owner:         or(declared.Owner, DefaultOwner),
		Encoding:      or(declared.Encoding, DefaultEncoding),
		Locale:        or(declared.Locale, DefaultLocale),
		DataChecksums: declared.DataChecksums == nil || *declared.DataChecksums,
		SQL:           declared.SQL,
	}
	return out, out.Database, out.Owner
}

func or(value, fallback string) string {
	if value == "" {
		return fallback
	}
	return value
}
