package plugin_test

import (
	"strconv"
	"strings"
	"testing"

	"remuda/autoscaler-plugin/observe"
	"remuda/autoscaler-plugin/plugin"
	"remuda/controller/api"
	"remuda/internal/testkit/reference"
)

func TestReferenceSources(t *testing.T) {
	t.Setenv(api.EnvAddress, "")
	var names []string
	for _, c := range reference.Source(t, "autoscaler-plugin/plugin").Constants() {
		if strings.HasPrefix(c.Name, "Key") {
			names = append(names, c.Value)
		}
	}
	table := reference.Keys[plugin.Sources]{
		Names: names,
		Parse: func(values map[string]string) (plugin.Sources, error) {
			plain := map[string]string{plugin.KeyController: "http://127.0.0.1:4750"}
			for name, v := range values {
				if s, err := strconv.Unquote(v); err == nil {
					v = s
				}
				plain[name] = v
			}
			r := plugin.ReadSettings(plain)
			return plugin.ReadSources(r), r.Err()
		},
		Examples: map[string]string{
			plugin.KeyPromHeaders: `"X-Scope-OrgID=tenant"`, plugin.KeyPromMatch: `"namespace=prod"`, plugin.KeyPromSeries: `"kv_usage=my:kv"`,
		},
		Docs: map[string]string{
			plugin.KeyController: "The URLs of controllers, separated by commas; any of them will do. " + strconv.Quote(plugin.NoController) + ": work without a controller.",
		},
		Derived: map[string]string{
			plugin.KeyController: "`$" + api.EnvAddress + "`", plugin.KeyToken: "`$" + api.EnvToken + "`", plugin.KeyCACert: "`$" + api.EnvCACert + "`",
			plugin.KeyClientCert: "`$" + api.EnvClientCert + "`", plugin.KeyClientKey: "`$" + api.EnvClientKey + "`",
			plugin.KeyScrape: "`" + reference.Duration(observe.DefaultScrapeConfig().Interval) + "`",
		},
	}
	reference.Section(t, "configuration.md", "autoscaler sources", "## Where the autoscaler plugin looks\n\nSettings of the block `config` of the APM and of each strategy. "+
		"The target takes those of the controller.\n\n"+table.Table(t))
}
