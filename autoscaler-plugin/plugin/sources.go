package plugin

import (
	"context"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"remuda/autoscaler-plugin/enginemetrics"
	"remuda/autoscaler-plugin/observe"
	"remuda/controller/api"
	"remuda/controller/consul"
)

// Sources says where to look.
type Sources struct {
	// Controller is nil where there is none: it is neither named nor in the environment.
	Controller *api.Config
	// Consul is the address of the Consul agent, through which engines are found where
	// Prometheus is not set; empty: as Consul's own clients have it, "none": not through
	// Consul.
	Consul string
	// ConsulToken is the ACL token for Consul; empty: as Consul's own clients have it.
	ConsulToken string
	// Prometheus is the server that has the engines' metrics, in place of Consul, where its address is set.
	Prometheus observe.PrometheusConfig
	// Scrape is the time between two looks at an engine.
	Scrape time.Duration
}

// none says that there is no such source.
const none = "none"

// ReadSources reads them.
func ReadSources(r *Settings) Sources {
	c := Sources{Controller: r.Controller()}
	if c.Controller != nil && len(c.Controller.Addresses) == 0 && os.Getenv(api.EnvAddress) == "" {
		c.Controller = nil
	}
	c.Consul, c.ConsulToken = r.Text("consul", ""), r.Text("consul_token", "")
	p := &c.Prometheus
	p.Address, p.Token = r.Text("prometheus", ""), r.Text("prometheus_token", "")
	p.User, p.Password, p.CACert = r.Text("prometheus_user", ""), r.Text("prometheus_password", ""), r.Text("prometheus_ca_cert", "")
	p.ModelLabel = r.Text("prometheus_model_label", "")
	r.Parsed("prometheus_match", func(s string) (err error) {
		p.Match, err = matches(s)
		return err
	})
	pairs := func(to *map[string]string) func(string) error {
		return func(s string) error {
			all, err := matches(s)
			*to = map[string]string{}
			for _, m := range all {
				(*to)[m.Name] = m.Value
			}
			return err
		}
	}
	r.Parsed("prometheus_headers", pairs(&p.Headers))
	r.Parsed("prometheus_series", pairs(&p.Series))
	if labels := r.Text("prometheus_replica_labels", ""); labels != "" {
		for _, l := range strings.Split(labels, ",") {
			p.ReplicaLabels = append(p.ReplicaLabels, strings.TrimSpace(l))
		}
	}
	p.Window = r.Duration("prometheus_window", enginemetrics.DefaultWindow, time.Second, time.Hour)
	p.StaleAfter = r.Duration("prometheus_stale_after", enginemetrics.DefaultStaleAfter, time.Second, time.Hour)
	c.Scrape = r.Duration("scrape_interval", 0, time.Second, time.Minute)
	if p.Address != "" && c.Consul != "" && c.Consul != none {
		r.Fault("prometheus", "and consul are both set: set only one")
	}
	if c.Controller == nil && p.Address == "" && c.Consul == none {
		r.Fault("consul", "is %q, and prometheus and controller are not set: set at least one of them", none)
	}
	return c
}

// View is what models are observed through.
type View struct {
	Observer observe.Observer
	// Close ends what goes on in the background, and waits for it.
	Close func()
}

// OpenSources makes a View, and starts to read engines in the background.
func OpenSources(c Sources, log hclog.Logger) (View, error) {
	var (
		cfg  observe.Config
		done []func()
	)
	if c.Controller != nil {
		client, err := api.NewClient(*c.Controller)
		if err != nil {
			return View{}, err
		}
		done = append(done, client.Close)
		cfg.Controller = observe.NewController(client, nil)
	}
	switch {
	case c.Prometheus.Address != "":
		source, err := observe.NewPrometheus(c.Prometheus)
		if err != nil {
			return View{}, err
		}
		cfg.Metrics, done = source, append(done, source.Close)
	case c.Consul != none:
		of := consul.DefaultWatcherConfig()
		of.Address, of.Logger = consul.Address{Addr: c.Consul, Token: c.ConsulToken}, log.Named("consul")
		watcher, err := consul.NewWatcher(of)
		if err != nil {
			return View{}, err
		}
		with := observe.DefaultScrapeConfig()
		with.Watcher, with.Logger = watcher, log.Named("engines")
		if c.Scrape != 0 {
			with.Interval = c.Scrape
		}
		source, err := observe.NewScraper(with)
		if err != nil {
			return View{}, err
		}
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() {
			if err := source.Run(ctx); ctx.Err() == nil {
				log.Error("the engines' metrics are no longer read", "error", err)
			}
		})
		cfg.Metrics, done = source, append(done, cancel, running.Wait)
	}
	o, err := observe.New(cfg)
	if err != nil {
		return View{}, err
	}
	return View{Observer: o, Close: func() {
		for _, f := range done {
			f()
		}
	}}, nil
}
