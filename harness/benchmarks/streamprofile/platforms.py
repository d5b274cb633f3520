"""The five platforms: their names and what a model must know of each to read a user's posts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Platform:
    name: str
    context: str


PLATFORMS = {
    "weibo": Platform(
        "微博",
        "微博是公开的短内容平台，热搜带动话题快速更替。标签是博文中的话题词，既有追热点的，也有长期关注的明星、作品与领域。",
    ),
    "xiaohongshu": Platform(
        "小红书",
        "小红书是以图文笔记分享生活方式的社区，内容多为穿搭、美妆、美食、旅行与好物经验。标签是笔记末尾作者自选的主题词，常指具体的场景、品类或做法。",
    ),
    "toutiao": Platform(
        "今日头条",
        "今日头条是按兴趣推荐资讯与短视频的平台，内容涵盖时事、财经、军事、历史、三农、生活等。标签是作者发布内容时带上的话题词，多为题材或其中的关键对象，不少作者长期只做少数领域。",
    ),
    "zhihu": Platform(
        "知乎",
        "知乎是问答社区，用户以提问、回答和文章参与讨论。标签是用户参与的问题或话题：可能是一整句问题，也可能是一个词，覆盖学科、职业、作品与社会议题。",
    ),
    "douban": Platform(
        "豆瓣",
        "豆瓣以书、影、音的标记、评论与兴趣小组为主。标签记录用户对作品的标记，常由动作与作品名组成（想看与看过不同：一是意向，一是已经看完），也可能是类型、创作者或小组话题。",
    ),
}
