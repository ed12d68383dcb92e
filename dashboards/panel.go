package dashboards

import (
	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/variants"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/heatmap"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/statetimeline"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
	"github.com/grafana/grafana-foundation-sdk/go/units"
)

// yesNo is Grafana's unit for 0 and 1.
const yesNo = "bool_yes_no"

// board is a dashboard: rows of two panels each.
type board struct {
	file, uid, title, description string
	rows                          [][2]panel
}

// panel is one panel. All fields are required, but for draw.
type panel struct {
	title, description, unit string
	queries                  []query
	draw                     drawing
}

// drawing is how a panel shows its data.
type drawing int

const (
	lines drawing = iota
	heat
	states
)

// query is what a panel asks, and how it names the answer's series.
type query struct{ expr, legend string }

// Sizes on Grafana's grid of 24 columns.
const (
	halfWidth   = 12
	panelHeight = 8
)

// source is the datasource that is chosen at the top of the dashboard.
func source() common.DataSourceRef {
	return common.DataSourceRef{Type: new("prometheus"), Uid: new("${datasource}")}
}

// The dashboard's first schema is the one that file provisioning takes in every
// version of Grafana, however it is called.
func (b *board) build() (dashboard.Dashboard, error) { //nolint:staticcheck // deprecated for Grafana's API, not for its files
	d := dashboard.NewDashboardBuilder(b.title). //nolint:staticcheck // see above
							Uid(b.uid).
							Description(b.description).
							Tags([]string{"leeway"}).
							Readonly().
							Time("now-3h", "now").
							Refresh("10s").
							Timezone("utc").
							Tooltip(dashboard.DashboardCursorSyncCrosshair).
							WithVariable(dashboard.NewDatasourceVariableBuilder("datasource").
								Label("Prometheus").
								Description("The Prometheus that scrapes Leeway.").
								Type("prometheus")).
							Link(dashboard.NewDashboardLinkBuilder("Leeway").
								Type(dashboard.DashboardLinkTypeDashboards).
								Tags([]string{"leeway"}).
								KeepTime(true))
	id := uint32(0)
	for y, row := range b.rows {
		for x := range row {
			id++
			d.WithPanel(row[x].builder(id, dashboard.GridPos{
				X: uint32(x) * halfWidth, Y: uint32(y) * panelHeight, W: halfWidth, H: panelHeight,
			}))
		}
	}
	return d.Build()
}

func (p *panel) builder(id uint32, at dashboard.GridPos) cog.Builder[dashboard.Panel] {
	switch p.draw {
	case heat:
		return heatmap.NewPanelBuilder().Id(id).GridPos(at).Title(p.title).Description(p.description).
			Datasource(source()).Targets(p.targets()).
			Unit(p.unit).
			YAxis(heatmap.NewYAxisConfigBuilder().Unit(p.unit)).
			Color(heatmap.NewHeatmapColorOptionsBuilder().Scheme("Oranges").Steps(32))
	case states:
		return statetimeline.NewPanelBuilder().Id(id).GridPos(at).Title(p.title).Description(p.description).
			Datasource(source()).Targets(p.targets()).
			Unit(p.unit).
			ColorScheme(dashboard.NewFieldColorBuilder().Mode(dashboard.FieldColorModeIdThresholds)).
			Thresholds(dashboard.NewThresholdsConfigBuilder().Mode(dashboard.ThresholdsModeAbsolute).Steps([]dashboard.Threshold{
				{Color: "transparent"}, {Value: new(1.0), Color: "orange"},
			}))
	case lines:
	}
	g := timeseries.NewPanelBuilder().Id(id).GridPos(at).Title(p.title).Description(p.description).
		Datasource(source()).Targets(p.targets()).
		Unit(p.unit).
		LineWidth(2).
		ShowPoints(common.VisibilityModeNever).
		Legend(common.NewVizLegendOptionsBuilder().
			ShowLegend(true).
			DisplayMode(common.LegendDisplayModeTable).
			Placement(common.LegendPlacementRight).
			Calcs([]string{"lastNotNull", "max"}))
	if p.unit != units.Milliseconds { // slack goes below zero
		g.Min(0)
	}
	return g
}

func (p *panel) targets() []cog.Builder[variants.Dataquery] {
	format := prometheus.PromQueryFormatTimeSeries
	if p.draw == heat {
		format = prometheus.PromQueryFormatHeatmap
	}
	var out []cog.Builder[variants.Dataquery]
	for i, q := range p.queries {
		out = append(out, prometheus.NewDataqueryBuilder().
			RefId(string(rune('A'+i))).
			Expr(q.expr).
			LegendFormat(q.legend).
			Format(format).
			EditorMode(prometheus.QueryEditorModeCode).
			Range().
			Datasource(source()))
	}
	return out
}
