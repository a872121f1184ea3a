package plugin

import (
	"context"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"remuda/autoscaler-plugin/observe"
	"remuda/controller/api"
	"remuda/controller/consul"
)

// Keys of where to look, beside those of the controller.
const (
	KeyConsul          = "consul"           // address of Consul's agent; "none": not through Consul
	KeyConsulToken     = "consul_token"     // empty: as Consul's own clients have it
	KeyPrometheus      = "prometheus"       // URL of a Prometheus server, in place of Consul
	KeyPrometheusToken = "prometheus_token" // a bearer token
	KeyScrape          = "scrape_interval"  // between two looks at an engine
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
	// Prometheus is the URL of a Prometheus server that has the engines' metrics, in place
	// of Consul.
	Prometheus string
	// PrometheusToken is a bearer token for the Prometheus server.
	PrometheusToken string
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
	c.Consul, c.ConsulToken = r.Text(KeyConsul, ""), r.Text(KeyConsulToken, "")
	c.Prometheus, c.PrometheusToken = r.Text(KeyPrometheus, ""), r.Text(KeyPrometheusToken, "")
	c.Scrape = r.Duration(KeyScrape, 0, time.Second, time.Minute)
	if c.Prometheus != "" && c.Consul != "" && c.Consul != none {
		r.Fault(KeyPrometheus, "and %s are both set: set only one", KeyConsul)
	}
	if c.Controller == nil && c.Prometheus == "" && c.Consul == none {
		r.Fault(KeyConsul, "is %q, and %s and %s are not set: set at least one of them", none, KeyPrometheus, KeyController)
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
	case c.Prometheus != "":
		source, err := observe.NewPrometheus(observe.PrometheusConfig{Address: c.Prometheus, Token: c.PrometheusToken})
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
