package study

import (
	"fmt"
	"os"
	"path/filepath"

	"remuda/tools/policystudy/scalesim"
)

// Files of the folder that REMUDA_TRACES names (its README says whose they are).
const (
	serveGenFile = "servegen-m-small-traces.tar.gz"
	azureFile    = "azure-llm-2023-conv.csv"
)

// ServeGen makes 14 days of the production model's clients, scaled, with lengths of requests
// from the Azure trace (ServeGen publishes none). A seed moves the bursts within their ten
// minutes.
func ServeGen(dir string, scale float64, slots int) (Source, error) {
	f, err := os.Open(filepath.Join(dir, serveGenFile))
	if err != nil {
		return Source{}, fmt.Errorf("the ServeGen trace: %w", err)
	}
	defer f.Close()
	clients, err := scalesim.ReadServeGen("servegen", f)
	if err != nil {
		return Source{}, err
	}
	requests, err := readAzure(dir)
	if err != nil {
		return Source{}, err
	}
	lengths, err := scalesim.NewEmpirical(requests)
	if err != nil {
		return Source{}, err
	}
	return Source{Name: "servegen", Slots: slots, Make: func(seed uint64) (*scalesim.Trace, error) {
		return clients.Generate(seed, scale, 0, 0, lengths, scalesim.DefaultSpeed())
	}}, nil
}

// azureKept is how many of its requests a seed keeps.
const azureKept = 0.9

// Azure makes the hour of conversations, of which each seed keeps nine in ten requests.
func Azure(dir string, slots int) (Source, error) {
	requests, err := readAzure(dir)
	if err != nil {
		return Source{}, err
	}
	return Source{Name: "azure", Slots: slots, Make: func(seed uint64) (*scalesim.Trace, error) {
		return requests.Sample(azureKept, seed)
	}}, nil
}

func readAzure(dir string) (*scalesim.Trace, error) {
	f, err := os.Open(filepath.Join(dir, azureFile))
	if err != nil {
		return nil, fmt.Errorf("the Azure trace: %w", err)
	}
	defer f.Close()
	return scalesim.ReadRequests("azure", f, scalesim.DefaultSpeed())
}
