package reference_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/internal/testkit/reference"
)

// TestReferenceVersions writes the versions with which the tests run, from the pins.
func TestReferenceVersions(t *testing.T) {
	root := reference.Root(t)
	var rows [][]string
	for _, tool := range []struct{ name, dir, module, tested string }{
		{"Nomad", "nomad", "github.com/hashicorp/nomad", "`make test`"},
		{"Consul", "consul", "github.com/hashicorp/consul", "`make test`"},
		{"nomad-autoscaler", "nomad-autoscaler", "github.com/hashicorp/nomad-autoscaler", "`make test`"},
		{"nomad-pack", "nomad-pack", "github.com/hashicorp/nomad-pack", "`make test`"},
		{"Ollama", "ollama", "github.com/ollama/ollama", "`make verify`"},
	} {
		file := filepath.Join(root, "tools", tool.dir, "go.mod")
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		pin := regexp.MustCompile(`(?m)^(?:require)?\s+` + regexp.QuoteMeta(tool.module) + ` v(\S+)`).FindSubmatch(text)
		require.NotNil(t, pin, "%s requires no %s", file, tool.module)
		rows = append(rows, []string{tool.name, string(pin[1]), tool.tested})
	}
	text, err := os.ReadFile(filepath.Join(root, "e2e/clients/package.json"))
	require.NoError(t, err)
	var clients struct{ Dependencies map[string]string }
	require.NoError(t, json.Unmarshal(text, &clients))
	for _, client := range []struct{ name, module string }{
		{"OpenAI's library for JavaScript", "openai"},
		{"Anthropic's library for JavaScript", "@anthropic-ai/sdk"},
		{"Vercel's AI SDK", "ai"},
	} {
		version := clients.Dependencies[client.module]
		require.NotEmpty(t, version, client.module)
		rows = append(rows, []string{client.name + " (" + reference.Code(client.module) + ")", version, "`make test`"})
	}
	rows = append(rows,
		[]string{"Prometheus", "Debian's own", "`make test`"},
		[]string{"Debian", "12", "`make verify`: the packages are installed there"},
		[]string{"vLLM, SGLang", "none", "their job files are validated; their HTTP surface is simulated"})
	reference.Section(t, "versions.md", "versions", reference.Table([]string{"Program or library", "Version", "Tested by"}, rows))
}
