package main

import (
	"encoding/json"
	"fmt"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/variants"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

// board is a dashboard.
type board struct {
	// name is its file and the end of its UID.
	name, title, description string
	// variables are what the reader chooses: a name, and the metric and label that have its values.
	variables []variable
	rows      []row
}

type variable struct{ name, metric, label string }

// row is a line of panels with a heading.
type row struct {
	title  string
	panels []panel
}

// panel shows some queries over time, or as one number.
type panel struct {
	title, unit string
	// number shows the last value.
	number bool
	// bad is from where on a number is red; 0: it has no colour.
	bad     float64
	queries []query
	// description explains what the title does not.
	description string
}

// query has a legend with labels in two braces.
type query struct{ expr, legend string }

// Panels of a row share its 24 columns, four numbers or three graphs to a line.
const (
	numberWidth, numberHeight = 6, 4
	graphWidth, graphHeight   = 8, 8
)

// source is the Prometheus that the reader chooses.
var source = common.DataSourceRef{Type: cog.ToPtr("prometheus"), Uid: cog.ToPtr("${datasource}")}

func (b board) json() ([]byte, error) {
	d := dashboard.NewDashboardBuilder("remuda / "+b.title).
		Uid("remuda-"+b.name).Description(b.description).Tags([]string{"remuda"}).
		Refresh("30s").Time("now-3h", "now").Timezone("browser").Tooltip(dashboard.DashboardCursorSyncCrosshair).Readonly().
		Link(dashboard.NewDashboardLinkBuilder("remuda").Type(dashboard.DashboardLinkTypeDashboards).Tags([]string{"remuda"}).AsDropdown(true).KeepTime(true)).
		WithVariable(dashboard.NewDatasourceVariableBuilder("datasource").Label("Prometheus").Type("prometheus"))
	for _, v := range b.variables {
		d.WithVariable(dashboard.NewQueryVariableBuilder(v.name).Label(v.name).Datasource(source).
			Query(dashboard.StringOrMap{String: cog.ToPtr(fmt.Sprintf("label_values(%s, %s)", v.metric, v.label))}).
			Refresh(dashboard.VariableRefreshOnTimeRangeChanged).Sort(dashboard.VariableSortAlphabeticalAsc).Multi(true).IncludeAll(true).AllValue(".*"))
	}
	for _, r := range b.rows {
		d.WithRow(dashboard.NewRowBuilder(r.title))
		for _, p := range r.panels {
			d.WithPanel(p.builder())
		}
	}
	built, err := d.Build()
	if err != nil {
		return nil, err
	}
	data, err := json.MarshalIndent(built, "", "  ")
	return append(data, '\n'), err
}

func (p panel) builder() cog.Builder[dashboard.Panel] {
	var targets []cog.Builder[variants.Dataquery]
	for i, q := range p.queries {
		b := prometheus.NewDataqueryBuilder().Datasource(source).Expr(q.expr).LegendFormat(q.legend).RefId(string(rune('A' + i)))
		if p.number {
			b.Instant()
		} else {
			b.Range()
		}
		targets = append(targets, b)
	}
	if p.number {
		steps := []dashboard.Threshold{{Color: "text"}}
		if p.bad > 0 {
			steps = []dashboard.Threshold{{Color: "green"}, {Value: &p.bad, Color: "red"}}
		}
		return stat.NewPanelBuilder().Title(p.title).Description(p.description).Datasource(source).Unit(p.unit).Targets(targets).
			Span(numberWidth).Height(numberHeight).ColorMode(common.BigValueColorModeValue).GraphMode(common.BigValueGraphModeNone).
			Thresholds(dashboard.NewThresholdsConfigBuilder().Mode(dashboard.ThresholdsModeAbsolute).Steps(steps))
	}
	return timeseries.NewPanelBuilder().Title(p.title).Description(p.description).Datasource(source).Unit(p.unit).Targets(targets).
		Span(graphWidth).Height(graphHeight).Min(0).FillOpacity(10).ShowPoints(common.VisibilityModeNever)
}
