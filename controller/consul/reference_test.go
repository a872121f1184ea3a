package consul

import (
	"strings"
	"testing"

	"remuda/internal/replica"
	"remuda/internal/testkit/reference"
)

func TestReferenceConsul(t *testing.T) {
	name := replica.Name{Model: "MODEL", Variant: "VARIANT", ID: "ID"}
	r := registration(replica.Engine{Name: name, Role: "ROLE"}, "COHORT", DefaultRegistrarConfig())
	var meta [][]string
	for _, c := range reference.Source(t, "controller/consul").Constants() {
		if _, used := r.Meta[c.Value]; strings.HasPrefix(c.Name, "meta") && used {
			if c.Doc == "" {
				t.Errorf("the constant %s has no comment: write one", c.Name)
			}
			meta = append(meta, []string{reference.Code(c.Value), reference.Plain(t, c)})
		}
	}
	if len(meta) != len(r.Meta) {
		t.Errorf("%d keys of the meta are constants, %d are set", len(meta), len(r.Meta))
	}
	var keys [][]string
	for _, c := range reference.Source(t, "cmd/remuda").Constants() {
		if strings.HasPrefix(c.Value, "remuda/") {
			keys = append(keys, []string{reference.Code(c.Value + "GROUP"), reference.Plain(t, c)})
		}
	}
	reference.Section(t, "environment.md", "consul", "## Consul\n\nThe controller and the gateway register themselves under the names in their settings `consul.service` (see [configuration.md](configuration.md)).\n\n"+
		"### Service "+r.Name+"\n\n`remuda engine` registers an engine while it serves, with the ID "+reference.Code(r.ID)+", the tags "+reference.Codes(r.Tags)+
		" and a check with a time to live of "+reference.Code(r.Check.TTL)+" by default.\n\n"+reference.Table([]string{"Meta key", "Meaning"}, meta)+
		"\n### Keys\n\n"+reference.Table([]string{"Key", "Meaning"}, keys))
}
