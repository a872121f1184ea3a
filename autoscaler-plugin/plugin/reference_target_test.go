package plugin

import (
	"strings"
	"testing"

	"remuda/internal/testkit/reference"
)

func TestReferenceTarget(t *testing.T) {
	p := NewTarget(TargetConfig{})
	_, _, err := p.check(map[string]string{"model": "m", "zz": "1"})
	var rows [][]string
	for _, c := range reference.Source(t, "autoscaler-plugin/plugin").Constants() {
		if strings.HasPrefix(c.Name, "Meta") {
			if c.Doc == "" {
				t.Errorf("the constant %s has no comment", c.Name)
			}
			rows = append(rows, []string{reference.Code(c.Value), reference.Reworded(c.Doc, nil)})
		}
	}
	reference.Section(t, "configuration.md", "autoscaler target", "## Target for nomad-autoscaler\n\nSettings of the plugin's block `config`: "+reference.Codes(reference.Listed(t, p.SetConfig(map[string]string{"zz": "1"})))+
		", as above. `"+TargetPolicyDir+"` is the directory of nomad-autoscaler's block `policy`: the target writes the policies of model files there, "+
		"as `"+policyPattern+"`, and deletes them. Without it they do not act.\n\nSettings of a policy's block `target`: "+reference.Codes(reference.Listed(t, err))+": `model` is the name of the model that the policy scales, and `"+policyKey+"` is set by the target in the policies that it writes.\n\n"+
		"What the target reports beside the count:\n\n"+reference.Table([]string{"Key", "Value"}, rows))
}
