package operator

import (
	"reflect"
	"strings"
	"testing"
)

func TestSettingsFromEnvironment(t *testing.T) {
	s, err := settingsFromEnvironment([]string{
		"KUMKI_IMAGE=example.com/kumki:1", "POD_NAMESPACE=kumki-system", "RELATED_IMAGE_POSTGRES_17=example.com/postgres:17",
		"RELATED_IMAGE_POSTGRES_16=", "OTHER=x",
	})
	if err != nil {
		t.Fatal(err)
	}
	if s.OperatorImage != "example.com/kumki:1" || s.OperatorNamespace != "kumki-system" {
		t.Errorf("%+v", s)
	}
	if want := map[int]string{17: "example.com/postgres:17"}; !reflect.DeepEqual(s.PostgreSQLImages, want) {
		t.Errorf("%v", s.PostgreSQLImages)
	}
}

func TestSettingsSayWhatIsWrong(t *testing.T) {
	for text, environment := range map[string][]string{
		"KUMKI_IMAGE is not set":   {"POD_NAMESPACE=x"},
		"RELATED_IMAGE_POSTGRES_x": {"KUMKI_IMAGE=x", "RELATED_IMAGE_POSTGRES_x=y"},
	} {
		if _, err := settingsFromEnvironment(environment); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v: %v", environment, err)
		}
	}
}

func TestOLMsImageIsSecondChoice(t *testing.T) {
	s, err := settingsFromEnvironment([]string{"RELATED_IMAGE_KUMKI=a"})
	if err != nil || s.OperatorImage != "a" {
		t.Error(s, err)
	}
	for _, order := range [][]string{{"RELATED_IMAGE_KUMKI=a", "KUMKI_IMAGE=b"}, {"KUMKI_IMAGE=b", "RELATED_IMAGE_KUMKI=a"}} {
		if s, _ := settingsFromEnvironment(order); s.OperatorImage != "b" {
			t.Error(order, s)
		}
	}
}

func TestNamespaces(t *testing.T) {
	for list, want := range map[string][]string{"": nil, " ": nil, "a": {"a"}, "a, b,": {"a", "b"}} {
		if got := namespaces(list); !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %v", list, got)
		}
	}
}
