package plan

import (
	"fmt"
	"strconv"
	"strings"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/instanceapi"
	"github.com/kumki-dev/kumki/internal/postgres"
)

// Versions of PostgreSQL that are supported, and the one taken when nothing is said.
const (
	oldestMajor  = 15
	newestMajor  = 18
	defaultMajor = 17
)

// Engine is which PostgreSQL the instances run.
type Engine struct {
	Major int
	Image string
}

// ChooseEngine returns the PostgreSQL that the spec asks for. images are the operator's own, by major version; running is what the
// instances run now, the zero value when there are none yet. When the choice is refused the finding says why, and the running
// engine stays; it is the zero value when there is none to stay with.
func ChooseEngine(cluster *apiv1.PostgreSQLCluster, images map[int]string, running Engine) (Engine, *Finding) {
	wanted, refused := declaredEngine(&cluster.Spec, images, running)
	if refused != nil {
		return running, refused
	}
	if wanted.Major < oldestMajor || wanted.Major > newestMajor {
		return running, &Finding{apiv1.ReasonVersionUnsupported, fmt.Sprintf(
			"PostgreSQL %d is not supported: use a version from %d to %d", wanted.Major, oldestMajor, newestMajor)}
	}
	if running.Major != 0 && wanted.Major != running.Major {
		return running, &Finding{apiv1.ReasonVersionChange, fmt.Sprintf(
			"the data is of PostgreSQL %d and cannot be run by %d: set spec.version and spec.image back to %d; for a newer major version create a new cluster and move the data with pg_dump or logical replication",
			running.Major, wanted.Major, running.Major)}
	}
	return wanted, nil
}

func declaredEngine(spec *apiv1.PostgreSQLClusterSpec, images map[int]string, running Engine) (Engine, *Finding) {
	major := defaultMajor
	switch {
	case spec.Version != "":
		n, err := strconv.Atoi(spec.Version)
		if err != nil {
			return Engine{}, &Finding{apiv1.ReasonVersionUnknown, fmt.Sprintf("spec.version %q is no major version: give one like \"17\"", spec.Version)}
		}
		major = n
	case spec.Image != "":
		n, err := postgres.MajorFromImage(spec.Image)
		if err != nil {
			return Engine{}, &Finding{apiv1.ReasonVersionUnknown, err.Error()}
		}
		major = n
	case running.Major != 0:
		major = running.Major // a newer operator's default does not move a running cluster
	}
	if spec.Image != "" {
		return Engine{Major: major, Image: spec.Image}, nil
	}
	if image := images[major]; image != "" {
		return Engine{Major: major, Image: image}, nil
	}
	return Engine{}, &Finding{apiv1.ReasonNoImage, fmt.Sprintf(
		"the operator has no image of PostgreSQL %d: set spec.image, or the environment variable RELATED_IMAGE_POSTGRES_%d of the operator", major, major)}
}

// Configuration is what goes into postgresql.conf and pg_hba.conf.
type Configuration struct {
	Parameters map[string]string
	HBA        []string
}

// ChooseConfiguration returns the declared configuration laid over the derived one. When it is refused the finding says why, and the
// last one stays in force; before there is a last one, what is good of the declared one is taken, so that the cluster comes up.
func ChooseConfiguration(spec *apiv1.PostgreSQLConfiguration, derived map[string]string, last *instanceapi.Config) (Configuration, *Finding) {
	problems := postgres.CheckParameters(spec.Parameters)
	if len(problems) == 0 {
		return Configuration{Parameters: postgres.Merge(derived, spec.Parameters), HBA: spec.HBA}, nil
	}
	texts := make([]string, 0, len(problems))
	good := map[string]string{}
	for name, value := range spec.Parameters {
		good[name] = value
	}
	for _, p := range problems {
		texts = append(texts, fmt.Sprintf("spec.postgresql.parameters.%s=%q %s", p.Parameter, spec.Parameters[p.Parameter], p.Reason))
		delete(good, p.Parameter)
	}
	refused := &Finding{apiv1.ReasonParameterOwned, strings.Join(texts, "; ") + "; the last good configuration stays in force"}
	if last != nil {
		return Configuration{Parameters: last.Parameters, HBA: last.HBA}, refused
	}
	return Configuration{Parameters: postgres.Merge(derived, good), HBA: spec.HBA}, refused
}

// rejected is PostgreSQL's own refusal of the configuration that is wanted, nil when no instance has one.
func rejected(v View, configHash string) *Finding {
	for i := range v.Instances {
		s := v.Instances[i].Status
		if s == nil || s.ConfigError == nil || s.ConfigError.ConfigHash != configHash {
			continue
		}
		if s.ConfigError.Parameter == "pg_hba.conf" {
			return &Finding{apiv1.ReasonHBARejected, fmt.Sprintf("PostgreSQL refuses spec.postgresql.hba: %s; the last good configuration stays in force", s.ConfigError.Message)}
		}
		return &Finding{apiv1.ReasonParameterRejected, fmt.Sprintf(
			"PostgreSQL refuses spec.postgresql.parameters.%s: %s; the last good configuration stays in force", s.ConfigError.Parameter, s.ConfigError.Message)}
	}
	return nil
}
