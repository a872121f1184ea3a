package agent

import (
	"fmt"
	"testing"
	"time"

	"remuda/internal/testkit/reference"
)

func TestReferenceMetrics(t *testing.T) {
	reference.Section(t, "metrics.md", "controller server", "### Server\n\n"+reference.Metrics(t, serverMetrics("", time.Unix(1, 0))...))
}

func TestReferenceConfiguration(t *testing.T) {
	parse := func(src string) (Config, error) { return Parse("agent.hcl", []byte(src), DefaultConfig()) }
	own := reference.Keys[Config]{
		Names: reference.Names[Config](),
		Given: map[string]string{"data_dir": `"/var/lib/remuda"`},
		Parse: func(values map[string]string) (Config, error) { return parse(reference.HCL(values)) },
	}
	pool := reference.Keys[Config]{
		Names: reference.Names[Pool](),
		Given: map[string]string{"nomad.address": `"http://127.0.0.1:4647"`},
		Parse: func(values map[string]string) (Config, error) {
			return parse(fmt.Sprintf("data_dir = \"/var/lib/remuda\"\npool \"cloud\" {\n%s}\n", reference.HCL(values)))
		},
	}
	reference.Section(t, "configuration.md", "controller", "## Controller\n\nThe file of `remuda agent -config FILE`, in HCL.\n\n"+own.Table(t)+
		"\n### Blocks pool \"NAME\" of the controller\n\n"+reference.Reworded(reference.Source(t, "controller/agent").TypeDoc("Pool"), nil)+"\n\n"+pool.Table(t))
}
