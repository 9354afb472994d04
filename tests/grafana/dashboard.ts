// What a dashboard of ours is: Grafana's published types, and on top of them that each panel has a
// description, a unit and the data source of the dashboard's own list.
import type { Dashboard as Published, DataQuery, FieldConfig, HideSeriesConfig, Panel as AnyPanel, RowPanel } from "@grafana/schema";
import type * as heatmap from "@grafana/schema/dist/esm/raw/composable/heatmap/panelcfg/x/HeatmapPanelCfg_types.gen";
import type * as stat from "@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen";
import type * as timeseries from "@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";

// A type as JSON writes it: a value of an enum is its bare string or number.
type Json<T> = T extends string
  ? `${T}`
  : T extends number
    ? `${number}` extends `${T}`
      ? number
      : `${T}` extends `${infer N extends number}`
        ? N
        : never
    : T extends (infer Item)[]
      ? Json<Item>[]
      : T extends object
        ? { [Key in keyof T]: Json<T[Key]> }
        : T;

type Source = { type: "prometheus"; uid: "${datasource}" };

// The package has no types for Prometheus's queries beyond what all queries have.
interface Query extends Omit<DataQuery, "datasource" | "queryType"> {
  datasource: Source;
  editorMode: "code";
  expr: string;
  legendFormat: string;
  range: boolean;
  instant?: boolean;
  format?: "heatmap";
}

// Hides series without a value above zero from legend and tooltip.
interface HiddenSeries {
  matcher: { id: "byValue"; options: { op: "gte"; reducer: "allIsZero" | "allIsNull"; value: 0 } };
  properties: [{ id: "custom.hideFrom"; value: HideSeriesConfig }];
}

interface PanelOf<Type, Options, Custom> extends Omit<Json<AnyPanel>, "type" | "options" | "fieldConfig" | "targets"> {
  type: Type;
  id: number;
  title: string;
  description: string;
  datasource: Source;
  gridPos: { x: number; y: number; w: number; h: number };
  options: Json<Options>;
  fieldConfig: {
    defaults: Omit<Json<FieldConfig>, "custom" | "unit"> & { unit: string; custom?: Json<Custom> };
    overrides: HiddenSeries[];
  };
  targets: Query[];
}

type Chart =
  | PanelOf<"timeseries", timeseries.Options, timeseries.FieldConfig>
  | PanelOf<"stat", stat.Options, never>
  | PanelOf<"heatmap", heatmap.Options, heatmap.FieldConfig>;

// A collapsed row contains its panels; those of another row follow it.
type Row = Omit<Json<RowPanel>, "type" | "collapsed" | "panels"> & { type: "row" } & (
    | { collapsed: false; panels: [] }
    | { collapsed: true; panels: Chart[] }
  );

export type Panel = Row | Chart;

export type Dashboard = Omit<Json<Published>, "panels"> & { uid: string; title: string; description: string; panels: Panel[] };

// What is no such dashboard is refused; a line of these that is accepted is an error.
const panel: Panel = {
  id: 1,
  type: "stat",
  title: "Sessions",
  description: "Open sessions.",
  datasource: { type: "prometheus", uid: "${datasource}" },
  gridPos: { x: 0, y: 0, w: 4, h: 4 },
  fieldConfig: { defaults: { unit: "short" }, overrides: [] },
  options: {
    colorMode: "value",
    graphMode: "none",
    justifyMode: "auto",
    orientation: "auto",
    percentChangeColorMode: "standard",
    reduceOptions: { calcs: ["lastNotNull"] },
    showPercentChange: false,
    textMode: "auto",
    wideLayout: true,
  },
  targets: [],
};
type Stat = PanelOf<"stat", stat.Options, never>;
// @ts-expect-error: a colour mode that Grafana does not know
export const a: Stat = { ...panel, options: { ...panel.options, colorMode: "bright" } };
// @ts-expect-error: an option that no panel of the kind has
export const b: Stat = { ...panel, options: { ...panel.options, cellGap: 1 } };
// @ts-expect-error: no unit
export const c: Stat = { ...panel, fieldConfig: { defaults: {}, overrides: [] } };
// @ts-expect-error: no description
export const d: Stat = { ...panel, description: undefined };
// @ts-expect-error: another data source
export const e: Stat = { ...panel, datasource: { type: "prometheus", uid: "prometheus" } };
// @ts-expect-error: a kind of panel that none of ours is
export const f: Panel = { ...panel, type: "graph" };
// @ts-expect-error: a sort order that Grafana does not know
export const g: Dashboard = { uid: "u", title: "t", description: "d", schemaVersion: 39, panels: [], graphTooltip: 7 };
// @ts-expect-error: a field that no dashboard has
export const h: Dashboard = { uid: "u", title: "t", description: "d", schemaVersion: 39, panels: [], colour: "red" };
