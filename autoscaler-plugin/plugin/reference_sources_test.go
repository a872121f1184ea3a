package plugin_test

import (
	"strconv"
	"testing"

	"remuda/autoscaler-plugin/observe"
	"remuda/autoscaler-plugin/plugin"
	"remuda/controller/api"
	"remuda/internal/testkit/reference"
)

func TestReferenceSources(t *testing.T) {
	t.Setenv(api.EnvAddress, "")
	r := plugin.ReadSettings(map[string]string{"controller": "http://127.0.0.1:4750", "zz": "1"})
	plugin.ReadSources(r)
	names := reference.Listed(t, r.Err())
	table := reference.Keys[plugin.Sources]{
		Names: names,
		Parse: func(values map[string]string) (plugin.Sources, error) {
			plain := map[string]string{"controller": "http://127.0.0.1:4750"}
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
			"prometheus_headers": `"X-Scope-OrgID=tenant"`, "prometheus_match": `"namespace=prod"`, "prometheus_series": `"kv_usage=my:kv"`,
		},
		Docs: map[string]string{
			"controller": "The URLs of controllers, separated by commas; any of them will do. \"none\": work without a controller.",
		},
		Derived: map[string]string{
			"controller": "`$" + api.EnvAddress + "`", "token": "`$" + api.EnvToken + "`", "ca_cert": "`$" + api.EnvCACert + "`",
			"client_cert": "`$" + api.EnvClientCert + "`", "client_key": "`$" + api.EnvClientKey + "`",
			"scrape_interval": "`" + reference.Duration(observe.DefaultScrapeConfig().Interval) + "`",
		},
	}
	reference.Section(t, "configuration.md", "autoscaler sources", "## Where the autoscaler plugin looks\n\nSettings of the block `config` of the APM and of each strategy. "+
		"The target takes those of the controller.\n\n"+table.Table(t))
}
