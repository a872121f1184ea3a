package devcluster

import (
	"fmt"
	"os"
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclwrite"
)

// overlay merges an HCL config into another one: an attribute replaces the one of the same
// name, a block is merged into the one of the same type and labels, and what the base does
// not have is added.
func overlay(base string, name string, more []byte) (string, error) {
	onto, diags := hclwrite.ParseConfig([]byte(base), name, hcl.InitialPos)
	if diags.HasErrors() {
		return "", fmt.Errorf("read %s: %w", name, diags)
	}
	from, diags := hclwrite.ParseConfig(more, "the settings for "+name, hcl.InitialPos)
	if diags.HasErrors() {
		return "", fmt.Errorf("read the settings for %s: %w", name, diags)
	}
	merge(onto.Body(), from.Body())
	return string(onto.Bytes()), nil
}

func merge(onto, from *hclwrite.Body) {
	for name, attribute := range from.Attributes() {
		onto.SetAttributeRaw(name, attribute.Expr().BuildTokens(nil))
	}
	for _, block := range from.Blocks() {
		into := onto.FirstMatchingBlock(block.Type(), block.Labels())
		if into == nil {
			into = onto.AppendNewBlock(block.Type(), block.Labels())
		}
		merge(into.Body(), block.Body())
	}
}

// Overlay merges HCL settings into a config file of a cluster. A daemon reads them when it
// is started again.
func Overlay(path, settings string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	merged, err := overlay(string(raw), path, []byte(settings))
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(merged), 0o600)
}

// settings returns those of the options for a daemon: first those for all of its kind, then
// its own.
func (o *Options) settings(kind string, number int) []string {
	out := slices.Clone(o.Settings[kind])
	if number > 0 {
		out = append(out, o.Settings[numbered(kind, number)]...)
	} else {
		out = append(out, o.Settings[kind+"-1"]...)
	}
	return out
}

// numbered is the name of one of several daemons: gateway, gateway-2, gateway-3.
func numbered(name string, i int) string {
	if i == 0 {
		return name
	}
	return fmt.Sprintf("%s-%d", name, i+1)
}
