package main

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hcldec"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/nomad/helper/pluginutils/hclspecutils"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"github.com/zclconf/go-cty/cty/msgpack"

	deviceplugin "remuda/device-plugin"
	"remuda/internal/testkit/reference"
)

func TestReferenceCLI(t *testing.T) {
	reference.Section(t, "cli.md", "remuda-device", "## remuda-device\n\nThe Nomad device plugin prints this help for `remuda-device -h`.\n\n"+reference.Block("text", install))
}

func TestReferenceConfiguration(t *testing.T) {
	var got deviceplugin.Settings
	p, err := deviceplugin.New(deviceplugin.Config{
		Logger: hclog.NewNullLogger(),
		Open: func(s deviceplugin.Settings, l hclog.Logger) (deviceplugin.Source, error) {
			got = s
			if len(s.Simulate) == 0 {
				return struct{ deviceplugin.Source }{}, nil // not this machine's GPUs
			}
			return openSource(s, l)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	schema, err := p.ConfigSchema()
	if err != nil {
		t.Fatal(err)
	}
	parse := func(block string) func(values map[string]string) (deviceplugin.Settings, error) {
		return func(values map[string]string) (deviceplugin.Settings, error) {
			body := reference.HCL(values)
			if block != "" {
				if values == nil {
					return deviceplugin.Settings{}, nil // without its required settings it cannot be encoded
				}
				body = fmt.Sprintf("%s {\n%s}\n", block, body)
			}
			got = deviceplugin.Settings{}
			encoded, err := encode(schema, body)
			if err != nil {
				return got, err
			}
			err = p.SetConfig(&base.Config{PluginConfig: encoded})
			return got, err
		}
	}
	top := schema.GetObject().GetAttributes()
	gpu, simulate := nested(top["gpu"]), nested(top["simulate"])
	plain := reference.Keys[deviceplugin.Settings]{
		Names: names(top), Parse: parse(""), Examples: map[string]string{
			"containers": `"cdi"`, "metrics": `"127.0.0.1:9835"`, "gms_socket_dir": `"/srv/gms"`, "state_file": `"/srv/gpus.json"`, "sim_dir": `"/srv/gpus"`,
		},
	}
	gpus := reference.Keys[deviceplugin.Settings]{
		Names: names(gpu), Given: map[string]string{"id": `"GPU-1"`}, Parse: parse("gpu"),
		Docs: map[string]string{"id": "The UUID of the GPU or of the MIG instance."}, Derived: map[string]string{"id": "required"},
	}
	simulated := reference.Keys[deviceplugin.Settings]{
		Names: names(simulate), Given: map[string]string{"model": `"H100"`}, Parse: parse("simulate"), Derived: map[string]string{"model": "required"},
	}
	reference.Section(t, "configuration.md", "device", "## Device plugin\n\nThe block `config` of `plugin \"remuda-device\"` in the configuration of the Nomad agent.\n\n"+plain.Table(t)+
		"\n### Blocks gpu of the device plugin\n\n"+gpus.Table(t)+"\n### Blocks simulate of the device plugin\n\n"+
		simulated.Table(t))
}

// encode turns the body of a config block into what Nomad sends.
func encode(schema *hclspec.Spec, body string) ([]byte, error) {
	spec, diags := hclspecutils.Convert(schema)
	if diags.HasErrors() {
		return nil, diags
	}
	file, diags := hclparse.NewParser().ParseHCL([]byte(body), "config.hcl")
	if diags.HasErrors() {
		return nil, diags
	}
	value, diags := hcldec.Decode(file.Body, spec, &hcl.EvalContext{})
	if diags.HasErrors() {
		return nil, diags
	}
	return msgpack.Marshal(value, value.Type())
}

// nested is what a block that may be repeated has in it.
func nested(s *hclspec.Spec) map[string]*hclspec.Spec {
	return s.GetBlockList().GetNested().GetObject().GetAttributes()
}

// names are the attributes of a schema.
func names(schema map[string]*hclspec.Spec) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(schema)) {
		if schema[name].GetBlockList() == nil {
			out = append(out, name)
		}
	}
	return out
}
