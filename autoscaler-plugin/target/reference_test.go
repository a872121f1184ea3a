package target

import (
	"regexp"
	"strings"
	"testing"

	"remuda/internal/testkit/reference"
)

func TestReferenceConfiguration(t *testing.T) {
	known := func(err error) string {
		if err == nil {
			t.Fatal("an unknown setting is taken")
		}
		m := regexp.MustCompile(`zz is unknown:.*?((?:[a-z_]+, )*[a-z_]+)$`).FindStringSubmatch(err.Error())
		if m == nil {
			t.Fatalf("the error for an unknown setting lists those that are known in another form than expected: %v", err)
		}
		return reference.Codes(strings.Split(m[1], ", "))
	}
	p := New(Config{})
	_, _, err := p.check(map[string]string{"model": "m", "zz": "1"})
	var rows [][]string
	for _, c := range reference.Source(t, "autoscaler-plugin/target").Constants() {
		if strings.HasPrefix(c.Name, "Meta") {
			if c.Doc == "" {
				t.Errorf("the constant %s has no comment", c.Name)
			}
			rows = append(rows, []string{reference.Code(c.Value), reference.Reworded(c.Doc, nil)})
		}
	}
	reference.Section(t, "configuration.md", "autoscaler target", "## Target for nomad-autoscaler\n\nSettings of the plugin's block `config`: "+known(p.SetConfig(map[string]string{"zz": "1"}))+
		", as above.\n\nSettings of a policy's block `target`: "+known(err)+", the name of the model that the policy scales.\n\n"+
		"What the target reports beside the count:\n\n"+reference.Table([]string{"Key", "Value"}, rows))
}
