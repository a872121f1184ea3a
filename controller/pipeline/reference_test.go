package pipeline

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"remuda/internal/testkit/reference"
)

func TestReferenceConfiguration(t *testing.T) {
	src := reference.Source(t, "controller/pipeline")
	table := func(attributes []string, typ string, standard map[string]string) string {
		var rows [][]string
		for _, name := range attributes {
			found := false
			for _, f := range src.Fields(typ) {
				if found = strings.EqualFold(f.Name, strings.ReplaceAll(name, "_", "")) || name == "for_each" && f.Name == "forEach"; found {
					kind := map[string]string{"hcl.Expression": "expression", "time.Duration": "duration", "int": "whole number"}[f.Type]
					if kind == "" {
						kind = "string"
					}
					rows = append(rows, []string{reference.Code(name), kind, standard[name], reference.Reworded(f.Doc, map[string]string{f.Name: name, "MaxDeadline": MaxDeadline.String()})})
					break
				}
			}
			if !found {
				t.Errorf("the attribute %s has no field of %s", name, typ)
			}
		}
		return reference.Table([]string{"Setting", "Type", "Default", "Meaning"}, rows)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "## Pipeline file\n\nThe file of `remuda pipeline apply FILE`, in HCL, with one pipeline.\n\n%s\n", src.Overview(t, "The package is pure"))
	fmt.Fprintf(&b, "### Block pipeline \"NAME\"\n\n%s\n", table(reference.Names[pipelineBlock](), "Pipeline", map[string]string{"deadline": "`" + reference.Duration(DefaultDeadline) + "`", "output": "required"}))
	fmt.Fprintf(&b, "### Blocks step \"NAME\" of a pipeline\n\n%s\n", table(reference.Names[stepBlock](), "Step", map[string]string{
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
