//! Sample texts for tests of the token estimates: fifteen languages and several machine formats. Each has three
//! pieces, of which tests make the turns of a conversation.

/// A kind of text, and three pieces of it.
pub(super) type Sample = (&'static str, [&'static str; 3]);

pub(super) const SAMPLES: [Sample; 24] = [
    (
        "english",
        [
            "All human beings are born free and equal in dignity and rights. They are endowed with reason and conscience and should act towards one another in a spirit of brotherhood. Please summarise what this article says, and tell me which countries have signed it since the war.",
            "I've looked through the minutes of last Thursday's meeting: nobody objected to the proposal, although the treasurer wondered whether we could really afford refurbishing the kitchen before winter. She'll circulate an updated spreadsheet, and we'll decide when everyone's back from holiday.",
            "The harbour was quiet when they arrived; only the rigging clinked, and somewhere behind the warehouses a radio played an old song. Margaret put down her suitcase, counted the remaining coins, and asked the fisherman about a cheap place to sleep that wasn't infested with mosquitoes.",
        ],
    ),
    (
        "german",
        [
            "Alle Menschen sind frei und gleich an Würde und Rechten geboren. Sie sind mit Vernunft und Gewissen begabt und sollen einander im Geist der Brüderlichkeit begegnen. Bitte fasse zusammen, welche Verpflichtungen sich daraus für die Unterzeichnerstaaten ergeben.",
            "Die Geschwindigkeitsbegrenzung auf der Landstraße wurde nach mehreren schweren Unfällen herabgesetzt, obwohl der Bürgermeister zunächst Einwände hatte. Außerdem überprüft die Straßenverkehrsbehörde, ob zusätzliche Fußgängerüberwege nötig wären.",
            "Im Herbst zogen wir mit dem Großvater über die abgeernteten Felder und suchten nach Kartoffeln, die übersehen worden waren. Abends saßen alle am Küchentisch, schälten, erzählten sich Gespenstergeschichten und vergaßen darüber völlig die Hausaufgaben.",
        ],
    ),
    (
        "french",
        [
            "Tous les êtres humains naissent libres et égaux en dignité et en droits. Ils sont doués de raison et de conscience et doivent agir les uns envers les autres dans un esprit de fraternité. Pourriez-vous m'expliquer ce que cet article impose aux États signataires ?",
            "La réunion de jeudi a été déplacée à vendredi parce que la salle n'était plus disponible. L'équipe présentera les résultats du deuxième trimestre, puis nous déciderons s'il faut embaucher quelqu'un d'autre ou réorganiser entièrement le service après-vente.",
            "Le vieux phare s'élevait au bout de la jetée, blanchi par le sel et les années. Chaque soir, l'enfant comptait les éclats de lumière qui balayaient la baie, persuadé qu'un bateau finirait par répondre à l'un d'eux.",
        ],
    ),
    (
        "vietnamese",
        [
            "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền. Mọi con người đều được tạo hóa ban cho lý trí và lương tâm và cần phải đối xử với nhau trong tình bằng hữu.",
            "Hôm qua tôi đã gửi lại bản báo cáo cho phòng kế toán, nhưng họ nói rằng số liệu của tháng trước vẫn chưa khớp với hóa đơn. Nhờ bạn kiểm tra giúp tôi các khoản chi phí vận chuyển và thuế nhập khẩu.",
            "Buổi sáng ở chợ nổi, những chiếc ghe chở đầy trái cây lặng lẽ trôi trên dòng sông. Người bán hàng gọi mời khách, mùi cà phê sữa đá hòa lẫn với mùi bún nước lèo nóng hổi.",
        ],
    ),
    (
        "russian",
        [
            "Все люди рождаются свободными и равными в своём достоинстве и правах. Они наделены разумом и совестью и должны поступать в отношении друг друга в духе братства. Объясните, пожалуйста, какие обязательства вытекают из этой статьи.",
            "Вчера мы проверили журналы сервера: ошибка возникала каждые пятнадцать минут, когда запускалось резервное копирование. После обновления драйвера нагрузка снизилась, однако пользователи всё ещё жалуются на медленную загрузку страниц.",
            "Поезд прибыл на станцию затемно, и пассажиры молча вышли на заснеженную платформу. Старик с чемоданом долго искал глазами внука, а потом сел на скамейку и достал из кармана тёплый ещё пирожок.",
        ],
    ),
    (
        "greek",
        [
            "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα. Είναι προικισμένοι με λογική και συνείδηση, και οφείλουν να συμπεριφέρονται μεταξύ τους με πνεύμα αδελφοσύνης.",
            "Η συνάντηση μεταφέρθηκε για την Παρασκευή, επειδή η αίθουσα δεν ήταν διαθέσιμη. Θα παρουσιάσουμε τα αποτελέσματα του τριμήνου και έπειτα θα αποφασίσουμε αν χρειάζεται να προσλάβουμε κι άλλον προγραμματιστή.",
            "Το παλιό καφενείο του λιμανιού μύριζε καπνό και θάλασσα. Οι ψαράδες έπαιζαν τάβλι, ενώ έξω ο αέρας σήκωνε τα κύματα και οι βάρκες χτυπούσαν η μία πάνω στην άλλη.",
        ],
    ),
    (
        "hebrew",
        [
            "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם. כולם חוננו בתבונה ובמצפון, לפיכך חובה עליהם לנהוג איש ברעהו ברוח של אחווה. אנא הסבר אילו התחייבויות נובעות מן הסעיף הזה.",
            "הפגישה הועברה ליום שישי מכיוון שהאולם לא היה פנוי. נציג את התוצאות של הרבעון השני, ולאחר מכן נחליט אם צריך לגייס עוד מתכנתת או לארגן מחדש את שירות הלקוחות.",
            "הרכבת הגיעה לתחנה לפנות בוקר, והנוסעים ירדו בשתיקה אל הרציף הקר. סבא חיפש את הנכד במבטו, ואחר כך התיישב על הספסל והוציא מכיסו כריך.",
        ],
    ),
    (
        "arabic",
        [
            "يولد جميع الناس أحراراً متساوين في الكرامة والحقوق. وقد وهبوا عقلاً وضميراً وعليهم أن يعامل بعضهم بعضاً بروح الإخاء. من فضلك اشرح لي الالتزامات التي تترتب على هذه المادة.",
            "تم نقل الاجتماع إلى يوم الجمعة لأن القاعة لم تكن متاحة. سنعرض نتائج الربع الثاني ثم نقرر ما إذا كنا بحاجة إلى توظيف مبرمج آخر أو إعادة تنظيم خدمة العملاء بالكامل.",
            "وصل القطار إلى المحطة قبل الفجر، ونزل المسافرون في صمت إلى الرصيف البارد. بحث الشيخ بعينيه عن حفيده، ثم جلس على المقعد وأخرج من جيبه رغيفاً ما زال دافئاً.",
        ],
    ),
    (
        "hindi",
        [
            "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है। उन्हें बुद्धि और अन्तरात्मा की देन प्राप्त है और परस्पर उन्हें भाईचारे के भाव से बर्ताव करना चाहिए।",
            "कल हमने सर्वर के लॉग की जाँच की और पाया कि हर पंद्रह मिनट में एक त्रुटि आती है। अद्यतन के बाद भार कम हुआ, लेकिन उपयोगकर्ता अब भी धीमी गति की शिकायत कर रहे हैं।",
            "पुराने बाज़ार की गलियों में सुबह से ही भीड़ थी। दुकानदार मसालों की बोरियाँ खोल रहे थे, और चाय की खुशबू पूरे मोहल्ले में फैल रही थी।",
        ],
    ),
    (
        "thai",
        [
            "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ต่างมีเหตุผลและมโนธรรม และควรปฏิบัติต่อกันด้วยเจตนารมณ์แห่งภราดรภาพ",
            "เมื่อวานนี้เราได้ตรวจสอบบันทึกของเซิร์ฟเวอร์และพบว่ามีข้อผิดพลาดเกิดขึ้นทุกสิบห้านาที หลังจากปรับปรุงระบบแล้วภาระงานลดลง แต่ผู้ใช้ยังคงบ่นว่าหน้าเว็บช้า",
            "ตลาดเก่าริมแม่น้ำเต็มไปด้วยผู้คนตั้งแต่เช้า แม่ค้าจัดเรียงผลไม้บนแผง และกลิ่นกาแฟโบราณลอยอบอวลไปทั่วซอย",
        ],
    ),
    (
        "chinese",
        [
            "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心，并应以兄弟关系的精神相对待。请说明这一条款对签署国规定了哪些义务，并举例说明。",
            "昨天我们检查了服务器日志，发现每隔十五分钟备份任务启动时就会出现错误。更新驱动程序之后，负载有所下降，但用户仍然抱怨页面加载缓慢，请继续排查数据库连接池。",
            "老码头的清晨十分安静，只有缆绳轻轻碰撞的声音。卖鱼的妇人把竹篮摆在石阶上，远处的渡轮鸣着汽笛，慢慢驶进薄雾之中。",
        ],
    ),
    (
        "japanese",
        [
            "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。人間は、理性と良心とを授けられており、互いに同胞の精神をもって行動しなければならない。",
            "昨日サーバーのログを確認したところ、バックアップが始まる十五分ごとにエラーが発生していました。ドライバーを更新した後は負荷が下がりましたが、ユーザーからはまだ表示が遅いという報告があります。",
            "古い港町の朝は静かで、係留された船の綱がかすかに鳴るだけだった。魚を売る女たちは石段に籠を並べ、遠くの連絡船が霧の中からゆっくりと現れた。",
        ],
    ),
    (
        "korean",
        [
            "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. 인간은 천부적으로 이성과 양심을 부여받았으며 서로 형제애의 정신으로 행동하여야 한다.",
            "어제 서버 로그를 확인해 보니 백업 작업이 시작되는 십오 분마다 오류가 발생하고 있었습니다. 드라이버를 업데이트한 뒤 부하는 줄었지만 사용자들은 여전히 페이지가 느리다고 합니다.",
            "오래된 항구의 아침은 조용했고 밧줄이 부딪히는 소리만 들렸다. 생선을 파는 아주머니들이 돌계단에 바구니를 늘어놓았고, 멀리서 여객선이 안개 속을 천천히 들어왔다.",
        ],
    ),
    (
        "georgian and tamil",
        [
            "ყველა ადამიანი იბადება თავისუფალი და თანასწორი თავისი ღირსებითა და უფლებებით. மனிதப் பிறிவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்; அவர்கள் மதிப்பிலும் உரிமைகளிலும் சமமானவர்கள்.",
            "მათ მინიჭებული აქვთ გონება და სინდისი და ერთმანეთის მიმართ უნდა იქცეოდნენ ძმობის სულისკვეთებით. அவர்கள் நியாயத்தையும் மனச்சாட்சியையும் இயற்பண்பாகப் பெற்றவர்கள்.",
            "ძველ ბაზარში დილიდანვე ბევრი ხალხი იყო, გამყიდველები ხილს ალაგებდნენ. பழைய சந்தையில் காலையிலிருந்தே கூட்டம் அதிகமாக இருந்தது; காபியின் மணம் தெருவெங்கும் பரவியது.",
        ],
    ),
    (
        "json",
        [
            r#"{"user":{"id":48213,"name":"Ada Lovelace","email":"ada@example.com","active":true,"roles":["admin","editor"],"address":{"street":"12 St James's Square","city":"London","zip":null}},"createdAt":"2026-03-14T09:26:53.589Z","score":97.25}"#,
            r#"[{"sku":"A-10293","qty":3,"price":19.99,"tags":["blue","xl"],"stock":{"berlin":12,"paris":0}},{"sku":"B-77120","qty":1,"price":249.0,"tags":[],"stock":{"berlin":4,"paris":9}},{"sku":"C-00418","qty":12,"price":1.5,"tags":["sale"],"stock":null}]"#,
            "{\n  \"status\": \"ok\",\n  \"items\": [\n    {\n      \"path\": \"src/main.rs\",\n      \"line\": 118,\n      \"severity\": \"warning\",\n      \"message\": \"unused variable: `total`\"\n    },\n    {\n      \"path\": \"src/lib.rs\",\n      \"line\": 7,\n      \"severity\": \"error\",\n      \"message\": \"mismatched types\"\n    }\n  ]\n}\n",
        ],
    ),
    (
        "schema",
        [
            r#"{"type":"object","properties":{"city":{"type":"string","description":"The city, such as Paris"},"unit":{"type":"string","enum":["celsius","fahrenheit"]},"days":{"type":"integer","minimum":1,"maximum":14}},"required":["city"],"additionalProperties":false}"#,
            r#"{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","properties":{"url":{"type":"string","format":"uri"},"headers":{"type":"object","additionalProperties":{"type":"string"}},"timeoutMs":{"type":["integer","null"],"default":null}},"required":["url"]}"#,
            r##"{"anyOf":[{"$ref":"#/$defs/Circle"},{"$ref":"#/$defs/Square"}],"$defs":{"Circle":{"type":"object","properties":{"radius":{"type":"number","exclusiveMinimum":0}},"required":["radius"]},"Square":{"type":"object","properties":{"side":{"type":"number"}},"required":["side"]}}}"##,
        ],
    ),
    (
        "rust",
        [
            "impl<'a> Parser<'a> {\n    /// Returns the next token, or `None` at the end.\n    pub fn next_token(&mut self) -> Option<Token<'a>> {\n        let rest = self.input.get(self.offset..)?;\n        let len = rest.find(char::is_whitespace).unwrap_or(rest.len());\n        self.offset += len + 1;\n        (len > 0).then(|| Token { text: &rest[..len], kind: TokenKind::Word })\n    }\n}\n",
            "#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]\npub struct Settings {\n    pub max_retries: u32,\n    pub base_url: String,\n    #[serde(default, skip_serializing_if = \"Vec::is_empty\")]\n    pub headers: Vec<(String, String)>,\n}\n",
            "#[tokio::test]\nasync fn a_closed_channel_is_an_error() {\n    let (sender, mut receiver) = mpsc::channel::<u8>(4);\n    drop(sender);\n    assert_eq!(receiver.recv().await, None);\n    assert!(matches!(receiver.try_recv(), Err(TryRecvError::Disconnected)));\n}\n",
        ],
    ),
    (
        "python",
        [
            "def moving_average(values, window=5):\n    \"\"\"Return the moving average of values.\"\"\"\n    if window <= 0:\n        raise ValueError(f\"window must be positive, got {window!r}\")\n    total, result = 0.0, []\n    for i, value in enumerate(values):\n        total += value\n        if i >= window:\n            total -= values[i - window]\n        result.append(total / min(i + 1, window))\n    return result\n",
            "class UserRepository:\n    def __init__(self, session_factory):\n        self._session_factory = session_factory\n\n    async def get_by_email(self, email: str) -> User | None:\n        async with self._session_factory() as session:\n            stmt = select(User).where(User.email == email.lower())\n            return (await session.execute(stmt)).scalar_one_or_none()\n",
            "import pandas as pd\n\ndf = pd.read_csv('sales_2025.csv', parse_dates=['date'])\nmonthly = df.groupby(df['date'].dt.to_period('M'))['amount'].sum()\nprint(monthly.pct_change().mul(100).round(2).to_string())\n",
        ],
    ),
    (
        "javascript",
        [
            "export async function fetchAll(urls, { concurrency = 4, signal } = {}) {\n  const results = new Array(urls.length);\n  let next = 0;\n  const worker = async () => {\n    while (next < urls.length) {\n      const i = next++;\n      const res = await fetch(urls[i], { signal });\n      results[i] = res.ok ? await res.json() : null;\n    }\n  };\n  await Promise.all(Array.from({ length: concurrency }, worker));\n  return results;\n}\n",
            "const App = () => {\n  const [items, setItems] = useState([]);\n  useEffect(() => { loadItems().then(setItems).catch(console.error); }, []);\n  return <ul className=\"list\">{items.map(item => <li key={item.id} onClick={() => select(item)}>{item.title}</li>)}</ul>;\n};\n",
            "app.post('/api/v2/orders/:orderId/cancel', requireAuth, async (req, res) => {\n  const order = await Order.findOne({ where: { id: req.params.orderId, userId: req.user.id } });\n  if (!order) return res.status(404).json({ error: 'not_found' });\n  await order.update({ state: 'cancelled', cancelledAt: new Date() });\n  res.sendStatus(204);\n});\n",
        ],
    ),
    (
        "log",
        [
            "2026-11-24T08:08:29.113Z INFO  http: GET /v1/sessions/7f3a9c21/events 200 12ms bytes=18233\n2026-11-24T08:08:29.871Z WARN  pool: connection 10.42.7.19:5432 idle for 301s, closing\n2026-11-24T08:08:30.002Z ERROR worker[3]: job 918273 failed: ETIMEDOUT after 30000 ms\n",
            "Nov 24 08:11:02 web-01 sshd[20418]: Accepted publickey for deploy from 203.0.113.77 port 51234 ssh2\nNov 24 08:11:03 web-01 systemd[1]: Started Session 4127 of user deploy.\nNov 24 08:11:09 web-01 kernel: [81723.448213] eth0: link up, 1000 Mbps\n",
            "172.16.254.1 - - [24/Nov/2026:08:12:44 +0000] \"POST /login HTTP/1.1\" 302 0 \"-\" \"Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\"\n172.16.254.9 - - [24/Nov/2026:08:12:45 +0000] \"GET /static/app.4f9b1c.js HTTP/1.1\" 304 0\n",
        ],
    ),
    (
        "numbers",
        [
            "date,open,high,low,close,volume\n2026-01-05,187.15,188.44,183.89,185.64,82488700\n2026-01-06,184.22,185.88,183.43,184.25,58414500\n2026-01-07,182.15,183.09,180.88,181.91,71983600\n2026-01-08,181.99,182.76,180.17,181.18,62303300\n",
            "0.0133 0.9921 -1.2207 3.1416 2.7183 100.0000 -0.0001 55.5000\n12 7 33 4 901 77 1024 65536 3 3 9 100 18 2048\n1e-9 6.02214076e23 299792458 1.602176634e-19\n",
            "| quarter | revenue | cost | margin |\n|---|---:|---:|---:|\n| Q1 2026 | 1,204,330 | 893,120 | 25.8% |\n| Q2 2026 | 1,377,902 | 941,007 | 31.7% |\n| Q3 2026 | 1,512,448 | 1,002,519 | 33.7% |\n",
        ],
    ),
    (
        "identifiers",
        [
            "550e8400-e29b-41d4-a716-446655440000 sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 commit f52b86591c7ab13ea1c5e1bb90d7dc43a1b9c5d2",
            "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg== eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0",
            "https://cdn.example.com/assets/v3/img/9c1185a5c5e9fc54612808977ee8f548b2258d31.webp?w=640&h=480&sig=Zm9vYmFyYmF6cXV4&exp=1795939200 req_01JD8Z3Q6W4V5T7Y9X2B1N0M8K",
        ],
    ),
    (
        "markdown",
        [
            "# Release notes\n\n## Added\n\n- **Streaming** of results (`--stream`), see [the guide](docs/guide.md#streaming).\n- A `retry` option:\n\n```toml\n[http]\nretry = { max = 3, backoff = \"250ms\" }\n```\n\n## Fixed\n\n1. A crash when the input was empty.\n2. Wrong totals in the *summary* table.\n",
            "> **Note:** this page describes version 2. The differences to version 1 are listed [below](#changes).\n\n| option | default | meaning |\n| --- | --- | --- |\n| `timeout` | `30s` | time for one request |\n| `retries` | `3` | attempts after the first |\n",
            "- [x] Write the migration\n- [ ] Test it on a copy of production\n- [ ] Announce the downtime :warning:\n\nSee also: _Planning_, ~~old plan~~, and `make check`.\n\n---\n\n<details><summary>Output</summary>\n\n    all 218 tests passed\n\n</details>\n",
        ],
    ),
    (
        "mixed",
        [
            "Überweisung №123 → 東京支店: ¥12,500 (税込) ✅ — подтверждено 2026-11-24, ref=TX_99a1. Danke! 🎉🎉 {\"ok\":true,\"naïve\":\"café\"}",
            "用户 said: \"请把 README.md 翻译成 English\" and attached `build.log` (1.2 MB). Ответ: готово 👍🏽. The function 计算总额(items) returns ∑ᵢ xᵢ ≤ 10⁶ €.",
            "def 인사(name):\n    return f'안녕하세요, {name}님!'  # says hello — 挨拶する\n\nСм. https://example.com/путь?q=тест&lang=ru … «готово»",
        ],
    ),
];
