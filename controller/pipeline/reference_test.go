package pipeline

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"

	"remuda/internal/testkit/reference"
)

func TestReferenceConfiguration(t *testing.T) {
	src := reference.Source(t, "controller/pipeline")
	table := func(schema *hcl.BodySchema, typ string, standard map[string]string) string {
		var rows [][]string
		for _, a := range schema.Attributes {
			found := false
			for _, f := range src.Fields(typ) {
				if found = strings.EqualFold(f.Name, strings.ReplaceAll(a.Name, "_", "")) || a.Name == "for_each" && f.Name == "forEach"; found {
					kind := map[string]string{"hcl.Expression": "expression", "time.Duration": "duration", "int": "whole number"}[f.Type]
					if kind == "" {
						kind = "string"
					}
					rows = append(rows, []string{reference.Code(a.Name), kind, standard[a.Name], reference.Reworded(f.Doc, map[string]string{f.Name: a.Name, "MaxDeadline": MaxDeadline.String()})})
					break
				}
			}
			if !found {
				t.Errorf("the attribute %s has no field of %s", a.Name, typ)
			}
		}
		return reference.Table([]string{"Setting", "Type", "Default", "Meaning"}, rows)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "## Pipeline file\n\nThe file of `remuda pipeline apply FILE`, in HCL, with one pipeline.\n\n%s\n", src.Overview(t, "The package is pure"))
	fmt.Fprintf(&b, "### Block pipeline \"NAME\"\n\n%s\n", table(pipelineSchema, "Pipeline", map[string]string{"deadline": "`" + reference.Duration(DefaultDeadline) + "`", "output": "required"}))
	fmt.Fprintf(&b, "### Blocks step \"NAME\" of a pipeline\n\n%s\n", table(stepSchema, "Step", map[string]string{
		"model": "required", "endpoint": "`" + string(Chat) + "`", "parallel": fmt.Sprintf("`%d`", MaxFanOut), "deadline": "the pipeline's",
	}))
	var rows [][]string
	for _, c := range src.Constants() {
		if strings.HasPrefix(c.Name, "Max") {
			rows = append(rows, []string{reference.Sentence(reference.Text(strings.TrimPrefix(c.Doc, c.Name+" is "))), fmt.Sprint(limits[c.Name])})
			if limits[c.Name] == nil {
				t.Errorf("the limit %s is not listed in this test", c.Name)
			}
		}
	}
	fmt.Fprintf(&b, "### Limits of a pipeline\n\n%s\n", reference.Table([]string{"Limit", "Value"}, rows))

	rows = nil
	for _, name := range slices.Sorted(maps.Keys(functions)) {
		f := functions[name]
		var params []string
		for _, p := range f.Params() {
			params = append(params, p.Name)
		}
		if p := f.VarParam(); p != nil {
			params = append(params, p.Name+"…")
		}
		about := f.Description()
		switch name { // HCL has none for these
		case "can":
			about = "Returns whether the expression has a value."
		case "try":
			about = "Returns the value of the first expression that has one."
		}
		rows = append(rows, []string{reference.Code(name + "(" + strings.Join(params, ", ") + ")"), reference.Sentence(reference.Text(about))})
	}
	fmt.Fprintf(&b, "### Functions of a pipeline's expressions\n\n%s", reference.Table([]string{"Function", "What it returns"}, rows))
	reference.Section(t, "configuration.md", "pipeline", b.String())
}

// limits are the values of the constants whose comments are on the page.
var limits = map[string]any{
	"MaxSource": reference.Size(MaxSource), "MaxStepName": MaxStepName, "MaxSteps": MaxSteps, "MaxFanOut": MaxFanOut, "MaxPrompt": reference.Size(MaxPrompt),
	"MaxHeld": reference.Size(MaxHeld), "MaxDeadline": reference.Duration(MaxDeadline),
}
