package sources_test

import (
	"strconv"
	"strings"
	"testing"

	"remuda/autoscaler-plugin/observe"
	"remuda/autoscaler-plugin/settings"
	"remuda/autoscaler-plugin/sources"
	"remuda/controller/api"
	"remuda/internal/testkit/reference"
)

func TestReferenceConfiguration(t *testing.T) {
	t.Setenv(api.EnvAddress, "")
	var names []string
	for _, path := range []string{"autoscaler-plugin/settings", "autoscaler-plugin/sources"} {
		for _, c := range reference.Source(t, path).Constants() {
			if strings.HasPrefix(c.Name, "Key") {
				names = append(names, c.Value)
			}
		}
	}
	table := reference.Keys[sources.Config]{
		Names: names,
		Parse: func(values map[string]string) (sources.Config, error) {
			plain := map[string]string{settings.KeyController: "http://127.0.0.1:4750"}
			for name, v := range values {
				if s, err := strconv.Unquote(v); err == nil {
					v = s
				}
				plain[name] = v
			}
			r := settings.Read(plain)
			return sources.Read(r), r.Err()
		},
		Docs: map[string]string{
			settings.KeyController: "The URLs of controllers, separated by commas; any of them will do. " + strconv.Quote(settings.NoController) + ": work without a controller.",
		},
		Derived: map[string]string{
			settings.KeyController: "`$" + api.EnvAddress + "`", settings.KeyToken: "`$" + api.EnvToken + "`", settings.KeyCACert: "`$" + api.EnvCACert + "`",
			settings.KeyClientCert: "`$" + api.EnvClientCert + "`", settings.KeyClientKey: "`$" + api.EnvClientKey + "`",
			sources.KeyScrape: "`" + reference.Duration(observe.DefaultScrapeConfig().Interval) + "`",
		},
	}
	reference.Section(t, "configuration.md", "autoscaler sources", "## Where the autoscaler plugin looks\n\nSettings of the block `config` of the APM and of each strategy. "+
		"The target takes those of the controller.\n\n"+table.Table(t))
}
