// Command fields writes the reference of every kind's fields from the CustomResourceDefinitions, as Markdown on standard output.
//
// usage: go run ./hack/fields FILE…
package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

func main() {
	fmt.Print("# Fields\n\nGenerated from the CustomResourceDefinitions by `make manifests`. `kubectl explain` shows the same.\n")
	for _, file := range os.Args[1:] {
		if err := document(os.Stdout, file); err != nil {
			fmt.Fprintln(os.Stderr, "fields:", err)
			os.Exit(1)
		}
	}
}

func document(w io.Writer, file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(data, &crd); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	for _, version := range crd.Spec.Versions {
		schema := version.Schema.OpenAPIV3Schema
		fmt.Fprintf(w, "\n## %s (%s/%s)\n\n%s\n", crd.Spec.Names.Kind, crd.Spec.Group, version.Name, oneLine(schema.Description))
		for _, part := range []string{"spec", "status"} {
			fmt.Fprintf(w, "\n### %s\n\n| field | type | default | meaning |\n|---|---|---|---|\n", part)
			fields(w, "", schema.Properties[part])
		}
		if all := rules(*schema); len(all) > 0 {
			fmt.Fprint(w, "\n### Rules\n\nThe API server refuses what breaks one of these; the text is its message.\n\n")
			for _, rule := range slices.Compact(all) {
				fmt.Fprintf(w, "- %s\n", rule)
			}
		}
	}
	return nil
}

// foreign are fields whose types are Kubernetes' own: its reference describes what is below them.
var foreign = map[string]bool{
	"affinity": true, "resources": true, "tolerations": true, "topologySpreadConstraints": true, "conditions": true, "imagePullSecrets": true,
}

func fields(w io.Writer, path string, schema apiextensionsv1.JSONSchemaProps) {
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		field := schema.Properties[name]
		at := strings.TrimPrefix(path+"."+name, ".")
		fmt.Fprintf(w, "| `%s` | %s | %s | %s |\n", at, typeOf(field), defaultOf(field), oneLine(field.Description))
		if foreign[at] {
			continue
		}
		fields(w, at, field)
		if field.Items != nil && field.Items.Schema != nil {
			fields(w, at+"[]", *field.Items.Schema)
		}
	}
}

func typeOf(schema apiextensionsv1.JSONSchemaProps) string {
	switch {
	case schema.XIntOrString:
		return "quantity"
	case schema.Type == "array" && schema.Items != nil && schema.Items.Schema != nil:
		return "list of " + typeOf(*schema.Items.Schema)
	case schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil:
		return "map of " + typeOf(*schema.AdditionalProperties.Schema)
	}
	return cmp.Or(schema.Format, schema.Type)
}

func defaultOf(schema apiextensionsv1.JSONSchemaProps) string {
	if schema.Default == nil || string(schema.Default.Raw) == "{}" || string(schema.Default.Raw) == `""` {
		return ""
	}
	return "`" + strings.Trim(string(schema.Default.Raw), `"`) + "`"
}

// rules are the messages of all CEL rules in the schema.
func rules(schema apiextensionsv1.JSONSchemaProps) []string {
	var all []string
	for _, rule := range schema.XValidations {
		all = append(all, oneLine(rule.Message))
	}
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		all = append(all, rules(schema.Properties[name])...)
	}
	if schema.Items != nil && schema.Items.Schema != nil {
		all = append(all, rules(*schema.Items.Schema)...)
	}
	return all
}

// oneLine makes text fit for a cell of a table.
func oneLine(text string) string {
	return strings.NewReplacer("|", "\\|", "<", "&lt;").Replace(strings.Join(strings.Fields(text), " "))
}
