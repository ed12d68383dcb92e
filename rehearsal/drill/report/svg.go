package report

import (
	"fmt"
	"html/template"
	"math"
	"strings"

	"leeway/broker"
	"leeway/rehearsal/drill"
	"leeway/slackgate"
)

// The colours of the charts; the page's legend uses them too.
const (
	paidColour   = "#2b6cb0"
	freeColour   = "#2f855a"
	rejectColour = "#a0aec0"
	missColour   = "#c53030"
	unsureColour = "#d69e2e"
	waitColour   = "#e2e8f0"
)

// chart is an SVG in the making. Its inside is width by height; axes stand
// around it.
type chart struct {
	b             strings.Builder
	width, height float64
	maxX, maxY    float64
}

const marginLeft, marginTop, marginBottom = 56, 14, 40

func newChart(width, height, maxX, maxY float64, xName, yName string) *chart {
	c := &chart{width: width, height: height, maxX: max(maxX, 1e-9), maxY: max(maxY, 1e-9)}
	fmt.Fprintf(&c.b, `<svg viewBox="0 0 %g %g" role="img" aria-label="%s by %s">`,
		width+marginLeft+12, height+marginTop+marginBottom, template.HTMLEscapeString(yName), template.HTMLEscapeString(xName))
	for _, y := range ticks(c.maxY) {
		if yName == inOrder {
			break // the first is on top: numbers would count the wrong way
		}
		c.line(0, y, c.maxX, y, "#edf2f7", "")
		fmt.Fprintf(&c.b, `<text x="%g" y="%.1f" text-anchor="end">%s</text>`, float64(marginLeft)-6, c.y(y)+4, number(y))
	}
	for _, x := range ticks(c.maxX) {
		fmt.Fprintf(&c.b, `<text x="%.1f" y="%g" text-anchor="middle">%s</text>`, c.x(x), height+marginTop+16, number(x))
	}
	fmt.Fprintf(&c.b, `<text x="%g" y="%g" text-anchor="end">%s</text>`, width+marginLeft, height+marginTop+33, template.HTMLEscapeString(xName))
	fmt.Fprintf(&c.b, `<text x="12" y="%g" text-anchor="middle" transform="rotate(-90 12 %g)">%s</text>`,
		height/2+marginTop, height/2+marginTop, template.HTMLEscapeString(yName))
	return c
}

// ticks are four to eight round numbers from 0 to most.
func ticks(most float64) (out []float64) {
	step := math.Pow(10, math.Floor(math.Log10(most/4)))
	for most/step > 8 {
		if most/(2*step) <= 8 {
			step *= 2
		} else {
			step *= 5
		}
	}
	for v := 0.0; v <= most*1.0001; v += step {
		out = append(out, v)
	}
	return out
}

func (c *chart) x(v float64) float64 { return marginLeft + v/c.maxX*c.width }
func (c *chart) y(v float64) float64 { return marginTop + c.height - v/c.maxY*c.height }

func (c *chart) line(x1, y1, x2, y2 float64, colour, dash string) {
	fmt.Fprintf(&c.b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-dasharray="%s"/>`,
		c.x(x1), c.y(y1), c.x(x2), c.y(y2), colour, dash)
}

func (c *chart) rect(x1, y1, x2, y2 float64, colour string) {
	fmt.Fprintf(&c.b, `<rect x="%.1f" y="%.1f" width="%.2f" height="%.2f" fill="%s"/>`,
		c.x(x1), c.y(y2), max(c.x(x2)-c.x(x1), 0.4), max(c.y(y1)-c.y(y2), 0), colour)
}

func (c *chart) dot(x, y float64, colour string) {
	fmt.Fprintf(&c.b, `<circle cx="%.1f" cy="%.1f" r="2.6" fill="%s" fill-opacity="0.65"/>`, c.x(x), c.y(y), colour)
}

// events marks what was done to the deployment.
func (c *chart) events(r *drill.Run) {
	for i, d := range r.Done {
		x := seconds(d.AtMS)
		c.line(x, 0, x, c.maxY, missColour, "4 3")
		fmt.Fprintf(&c.b, `<text x="%.1f" y="%g" fill="%s" class="event">%s</text>`,
			c.x(x)+3, float64(marginTop+10+12*(i%3)), missColour, template.HTMLEscapeString(d.What))
	}
}

// svg is the finished chart. All text in it was escaped as it was written, and
// the rest are numbers and colours of ours.
func (c *chart) svg() template.HTML {
	return template.HTML(c.b.String() + "</svg>") //nolint:gosec // see above
}

const (
	chartWidth = 900
	inOrder    = "admitted jobs, in order"
)

// colourOf is an admitted job's.
func colourOf(j *drill.Job) string {
	switch {
	case j.Outcome != "" && j.Outcome.Miss():
		return missColour
	case j.Path == slackgate.Free:
		return freeColour
	}
	return paidColour
}

// ended are the admitted jobs whose end is known.
func ended(r *drill.Run) (out []*drill.Job) {
	for i := range r.Jobs {
		if r.Jobs[i].Outcome != "" {
			out = append(out, &r.Jobs[i])
		}
	}
	return out
}

// decisions is what the gate said, second by second, as stacked bars.
func decisions(r *drill.Run) template.HTML {
	last := 0.0
	for i := range r.Jobs {
		last = max(last, seconds(r.Jobs[i].AtMS))
	}
	length := int(last) + 1
	width := max(1, (length+89)/90) // seconds a bar
	colours := []string{paidColour, freeColour, rejectColour, unsureColour}
	bars := make([][4]float64, (length+width-1)/width)
	most := 0.0
	for i := range r.Jobs {
		j := &r.Jobs[i]
		kind := 2
		switch {
		case j.Undecided():
			kind = 3
		case j.Path == slackgate.Paid:
			kind = 0
		case j.Path == slackgate.Free:
			kind = 1
		}
		b := &bars[int(j.AtMS/1000)/width]
		b[kind] += 1 / float64(width)
		most = max(most, b[0]+b[1]+b[2]+b[3])
	}
	c := newChart(chartWidth, 200, float64(len(bars)*width), most*1.3, "seconds", "jobs a second")
	for k, b := range bars {
		at, x := 0.0, float64(k*width)
		for kind, n := range b {
			if n > 0 {
				c.rect(x+0.06*float64(width), at, x+0.94*float64(width), at+n, colours[kind])
			}
			at += n
		}
	}
	c.events(r)
	return c.svg()
}

// waits is the wait that the gate predicted against the one that came.
func waits(r *drill.Run) template.HTML {
	jobs, most := ended(r), 1.0
	for _, j := range jobs {
		most = max(most, seconds(j.PredictedWaitMS), seconds(j.WaitMS))
	}
	c := newChart(420, 320, most*1.05, most*1.05, "predicted wait, s", "actual wait, s")
	c.line(0, 0, c.maxX, c.maxX, "#718096", "4 3")
	for _, j := range jobs {
		c.dot(seconds(j.PredictedWaitMS), seconds(j.WaitMS), colourOf(j))
	}
	return c.svg()
}

// timeline draws each admitted job as a bar: its wait, then its call; the mark
// is its deadline. Of too many jobs it shows every second, third and so on.
func timeline(r *drill.Run, deadlineMS int64) template.HTML {
	const mostRows = 400
	jobs := ended(r)
	every := max(1, (len(jobs)+mostRows-1)/mostRows)
	shown := (len(jobs) + every - 1) / every
	length := seconds(r.LengthMS())
	for _, j := range jobs {
		length = max(length, seconds(j.AtMS+deadlineMS))
	}
	height := min(620, max(120, float64(shown)*14))
	c := newChart(chartWidth, height, length, float64(max(shown, 1)), "seconds", inOrder)
	for row := range shown {
		j := jobs[row*every]
		bar := func(from, to float64, colour string) {
			y := float64(shown - row - 1)
			c.rect(from, y+0.12, to, y+0.88, colour)
		}
		told := float64(j.AtMS)/1000 + j.ToldMS/1000
		claimed, ended, due := seconds(j.ClaimedAtMS()), seconds(j.EndedAtMS()), seconds(j.AtMS+deadlineMS)
		bar(told, claimed, waitColour)
		if j.Outcome == broker.OutcomeExpired || j.Outcome == broker.OutcomeRevoked {
			bar(ended-length/300, ended, missColour)
		} else {
			bar(claimed, ended, colourOf(j))
		}
		bar(due, due+length/900, "#1a202c")
	}
	c.events(r)
	return c.svg()
}
